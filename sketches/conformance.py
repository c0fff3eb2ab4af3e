import sys,warnings,collections,glob,os,traceback
sys.path.insert(0,'/work/wt/onnx'); warnings.simplefilter('ignore')
import torch,numpy as np,onnx
from pathlib import Path
from archgraph.onnx.network import OnnxModule
from archgraph.errors import ArchGraphError
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.case.node import collect_testcases
torch.set_num_threads(1)
res=collections.Counter(); why=collections.defaultdict(list)
def near(a,b,rtol,atol):
    a=np.asarray(a); b=np.asarray(b)
    if a.shape!=b.shape: return f'shape {a.shape} {b.shape}'
    if a.dtype!=b.dtype: return f'dtype {a.dtype} {b.dtype}'
    try: return '' if np.allclose(a.astype(np.float64) if a.dtype.kind!='c' else a,b.astype(np.float64) if b.dtype.kind!='c' else b,rtol=rtol,atol=atol,equal_nan=True) else 'value %g'%np.abs(a.astype(float)-b.astype(float)).max()
    except Exception as e: return 'cmp '+str(e)
def case(group,name,model,sets,rtol,atol):
    try:
        kinds={i.name for i in model.graph.initializer}
        ins=[i for i in model.graph.input if i.name not in kinds]
        m=OnnxModule(model,Path('/tmp'),name).eval()
        bad=''
        for inputs,outputs in sets:
            needed=set()
            for s in m.steps:
                for i in (s.row.known if s.row else range(len(s.inputs))):
                    if i<len(s.inputs): needed.add(s.inputs[i])
            known=dict(m.known)
            m.known={**known,**{i.name:np.asarray(v) for i,v in zip(ins,inputs) if i.name in needed}}
            live=[(i.name,v) for i,v in zip(ins,inputs) if i.name not in m.known]
            m.inputs=tuple(n for n,_ in live)
            with torch.no_grad(): out=m(**{n:torch.from_numpy(np.array(v)) for n,v in live})
            out=[out] if not isinstance(out,dict) else list(out.values())
            for o,r in zip(out,outputs):
                bad=bad or near(o.numpy(),r,max(rtol,1e-3),max(atol,1e-5))
        k='equal' if not bad else 'DIFFERENT '+bad.split()[0]
        if bad: why[k].append((name,bad))
    except ArchGraphError as e: k='refused'; why['refused: '+(e.where or '').split(': ')[-1].split(' ')[0]+' '+e.message].append((name,str(e)))
    except Exception as e: k='ERROR'; why['ERROR '+type(e).__name__].append((name,str(e)[:150]))
    res[group,k]+=1
def conv(x):
    return x
groups=sys.argv[1:] or ['node','pytorch-converted','pytorch-operator','simple']
for g in groups:
    if g=='node':
        for t in collect_testcases(None): 
            try: sets=[(list(i),list(o)) for i,o in t.data_sets]
            except Exception as e: print(t.name,e); continue
            case(g,t.name,t.model,sets,t.rtol,t.atol)
    else:
        for t in load_model_tests(kind=g):
            d=t.model_dir; model=onnx.load(d+'/model.onnx'); sets=[]
            for s in sorted(glob.glob(d+'/test_data_set_*')):
                rd=lambda k:[onnx.numpy_helper.to_array(onnx.load_tensor(f)) for f in sorted(glob.glob(s+f'/{k}_*.pb'),key=lambda f:int(f.split('_')[-1][:-3]))]
                try: sets.append((rd('input'),rd('output')))
                except Exception as e: sets.append(([],[]))
            case(g,t.name,model,sets,t.rtol,t.atol)
for k,v in sorted(res.items()): print(k,v)
for k,v in sorted(why.items()):
    print('##',k,len(v)); 
    for n,b in v[:4 if k.startswith('refused') else 200]: print('    ',n,b[:170])
