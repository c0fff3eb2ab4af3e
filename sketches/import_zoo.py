import sys,time,warnings,tempfile,os
sys.path.insert(0,'/work/wt/onnx'); warnings.simplefilter('ignore')
import torch, archgraph as ag
from tests.zoo.collection import entry
from archgraph.onnx.session import session, run
from archgraph.rewrite.laws import random_inputs, outputs, difference
torch.set_num_threads(1)
def imp(path,label):
    t=time.time()
    graph,state=ag.load(path); dt=time.time()-t
    m=ag.build(graph,state).eval(); i=random_inputs(graph,3)
    for v in i.values():
        if not v.is_floating_point(): v.fill_(1)
    gap=difference(outputs(m,i),run(session(path),list(i.values())))
    a=ag.axes(graph); st=ag.structure(graph)
    print(label,f'{dt:.1f}s nodes {len(graph.nodes)} state {len(state)} gap {gap:.1e} free {len(a.free)} pinned {len(a.pinned)} sections {len(st.sections)} blocks {len(st.blocks)}',flush=True)
    print('   ',[b.name for b in st.blocks][:8], list(state)[:3], graph.notes)
    ag.take(graph,0.5,verify=True); print('    take verified',flush=True)
for name in sys.argv[1:]:
  try:
    if name.endswith('.onnx'): imp(name,name); continue
    e=entry(name).make(); e.model.eval()
    g,s=ag.trace(e.model,*e.args,**e.kwargs)
    p='/tmp/onnx_work/imp.onnx'
    ag.export(g,s,p)
    import onnx; q=onnx.load(p); del q.metadata_props[:]; onnx.save(q,p)
    a=ag.axes(g); print(name,'own: nodes',len(g.nodes),'free',len(a.free),'pinned',len(a.pinned),'blocks',len(ag.structure(g).blocks))
    imp(p,name)
  except Exception as ex: print(name,'FAIL',type(ex).__name__,str(ex)[:700],flush=True)
