"""The models of the zoo by group: classifiers of torchvision, families of transformers, our own.

Everything is built from code and configurations; no weights, no network.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tests.conftest  # noqa: F401 - offline, and torchvision beside a CPU torch
from tests.nets import Foreign

GROUPS = ("torchvision", "transformers", "handmade")


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes:
        name: Unique within its group.
        group: One of ``GROUPS``.
        make: Builds the model and its example inputs, seeded.
        heavy: Runs alone, since its copies need most of 24 GiB.
    """

    name: str
    group: str
    make: Callable[[], Foreign]
    heavy: bool = False


def entries(group: str | None = None) -> list[Entry]:
    """The models of a group or all of them, in the order of the table."""
    makers = {"torchvision": _torchvision, "transformers": _transformers, "handmade": _handmade}
    return [e for g in GROUPS if group in (None, g) for e in makers[g]()]


def entry(name: str) -> Entry:
    """Model by ``group/name``."""
    group, _, last = name.partition("/")
    for found in entries(group):
        if found.name == last:
            return found
    raise KeyError(name)


# -- torchvision --------------------------------------------------------------------------------

HEAVY = ("regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32")

# Pixels, where an architecture does not run at 64: patch sizes, windows, auxiliary heads.
PIXELS = {"inception_v3": 299, "maxvit_t": 224, "vit_h_14": 56}

# Segmentation and video: the shape of two examples and what differs from the defaults.
_MAPS: dict[str, Any] = {"weights_backbone": None, "num_classes": 5}
OTHERS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "deeplabv3_mobilenet_v3_large": ((2, 3, 64, 64), _MAPS),
    "fcn_resnet50": ((2, 3, 32, 32), {**_MAPS, "aux_loss": True}),
    "lraspp_mobilenet_v3_large": ((2, 3, 64, 64), _MAPS),
    "mc3_18": ((2, 3, 4, 32, 32), {}),
    "r2plus1d_18": ((2, 3, 4, 32, 32), {}),
    "r3d_18": ((2, 3, 4, 32, 32), {}),
    "swin3d_t": ((2, 3, 4, 64, 64), {}),
}


def _torchvision() -> list[Entry]:
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    return [
        Entry(name, "torchvision", functools.partial(_classifier, name), name in HEAVY)
        for name in sorted(names)
    ] + [Entry(name, "torchvision", functools.partial(_other, name)) for name in OTHERS]


def _classifier(name: str) -> Foreign:
    import torchvision

    size = PIXELS.get(name, 64)
    options: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # minutes of truncated normals
    if name.startswith("vit_"):
        options["image_size"] = size
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, **options)
    return Foreign(model, (torch.randn(2, 3, size, size),))


def _other(name: str) -> Foreign:
    import torchvision

    shape, options = OTHERS[name]
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, **options)
    return Foreign(model, (torch.randn(*shape),))


# -- transformers -------------------------------------------------------------------------------

VOCABULARY, LENGTH, PIXEL = 50, 12, 32


def _ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def _text() -> dict[str, Any]:
    return {"input_ids": _ids(), "attention_mask": torch.ones(2, LENGTH, dtype=torch.long)}


def _pair() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(8)}


def _image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, PIXEL, PIXEL)}


def _larger() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def _spectrum() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 24, 20), "decoder_input_ids": _ids(8)}


def _wave() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 400)}


def _text_and_image() -> dict[str, Any]:
    return {**_text(), **_image()}


@dataclass(frozen=True)
class Family:
    """A class of transformers, a small configuration and its inputs.

    A value of the configuration that is a dict under ``text_config`` or the like stays a dict.
    """

    model: str
    inputs: Callable[[], dict[str, Any]]
    config: dict[str, Any]
    config_class: str = ""

    def __call__(self) -> Foreign:
        import transformers

        torch.manual_seed(0)
        name = self.config_class or _config_of(self.model)
        config = getattr(transformers, name)(**self.config)
        model = getattr(transformers, self.model)(config)
        return Foreign(model, (), self.inputs())


def _config_of(model: str) -> str:
    """``BertForMaskedLM`` is configured by ``BertConfig``."""
    return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", model) + "Config"


_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40,
}  # fmt: skip
_DECODER: dict[str, Any] = {**_ENCODER, "use_cache": False, "pad_token_id": 0}
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 40, "use_cache": False,
}  # fmt: skip
_VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": PIXEL, "patch_size": 8,
}  # fmt: skip
_AUDIO: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (16, 16, 24), "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    # Both draw random numbers outside the graph (NumPy's, and one that Python branches on).
    "apply_spec_augment": False, "layerdrop": 0.0,
}  # fmt: skip
_TWO_TOWERS: dict[str, Any] = {
    "text_config": {**_ENCODER, "projection_dim": 24, "eos_token_id": 2, "bos_token_id": 1,
                    "pad_token_id": 0},
    "vision_config": {**_VIT, "projection_dim": 24},
    "projection_dim": 24,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    # text encoders
    "bert": Family("BertForSequenceClassification", _text, _ENCODER),
    "roberta": Family("RobertaForMaskedLM", _text, _ENCODER),
    "distilbert": Family(
        "DistilBertForSequenceClassification", _text,
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48,
         "max_position_embeddings": 40},
    ),
    "albert": Family(
        "AlbertForSequenceClassification", _text, {**_ENCODER, "embedding_size": 16}
    ),
    "electra": Family("ElectraForPreTraining", _text, {**_ENCODER, "embedding_size": 16}),
    "deberta": Family(
        "DebertaForSequenceClassification", _text,
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "max_relative_positions": 16, "position_biased_input": False},
    ),
    "deberta_v2": Family(
        "DebertaV2ForSequenceClassification", _text,
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
         "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
         "position_biased_input": False},
    ),
    "mpnet": Family("MPNetForSequenceClassification", _text, _ENCODER),
    "xlm_roberta": Family("XLMRobertaForTokenClassification", _text, _ENCODER),
    "funnel": Family(
        "FunnelForSequenceClassification", _text,
        {"vocab_size": VOCABULARY, "block_sizes": [2, 2], "num_decoder_layers": 2, "d_model": 32,
         "n_head": 4, "d_head": 8, "d_inner": 48},
    ),
    "squeezebert": Family(
        "SqueezeBertForSequenceClassification", _text, {**_ENCODER, "embedding_size": 32}
    ),
    "mobilebert": Family(
        "MobileBertForSequenceClassification", _text,
        {**_ENCODER, "embedding_size": 16, "intra_bottleneck_size": 16,
         "true_hidden_size": 16, "num_feedforward_networks": 2},
    ),
    "convbert": Family(
        "ConvBertForSequenceClassification", _text,
        {**_ENCODER, "embedding_size": 16, "conv_kernel_size": 3},
    ),
    "roformer": Family("RoFormerForSequenceClassification", _text, {**_ENCODER,
                                                                    "embedding_size": 32}),
    "modernbert": Family(
        "ModernBertForSequenceClassification", _text,
        {**_ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
         "sep_token_id": 2, "local_attention": 8, "global_attn_every_n_layers": 2},
    ),
    "xlnet": Family(
        "XLNetForSequenceClassification", _text,
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48,
         "use_mems_eval": False, "use_mems_train": False},
    ),
    # decoders
    "gpt2": Family(
        "GPT2LMHeadModel", _text,
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40,
         "use_cache": False},
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM", _text,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 40,
         "window_size": 8, "intermediate_size": 48, "use_cache": False},
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", _text, _DECODER),
    "gptj": Family(
        "GPTJForCausalLM", _text,
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40,
         "rotary_dim": 4, "use_cache": False},
    ),
    "opt": Family(
        "OPTForCausalLM", _text,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "word_embed_proj_dim": 32,
         "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48,
         "max_position_embeddings": 40, "use_cache": False},
    ),
    "llama": Family("LlamaForCausalLM", _text, _GROUPED),
    "mistral": Family("MistralForCausalLM", _text, {**_GROUPED, "sliding_window": 8}),
    "qwen2": Family("Qwen2ForCausalLM", _text, _GROUPED),
    "qwen3": Family("Qwen3ForCausalLM", _text, {**_GROUPED, "head_dim": 8}),
    "gemma": Family("GemmaForCausalLM", _text, {**_GROUPED, "head_dim": 8}),
    "gemma2": Family(
        "Gemma2ForCausalLM", _text, {**_GROUPED, "head_dim": 8, "sliding_window": 8}
    ),
    "phi": Family("PhiForCausalLM", _text, _GROUPED),
    "phi3": Family("Phi3ForCausalLM", _text, _GROUPED),
    "stablelm": Family("StableLmForCausalLM", _text, _GROUPED),
    "olmo": Family("OlmoForCausalLM", _text, _GROUPED),
    "starcoder2": Family("Starcoder2ForCausalLM", _text, _GROUPED),
    "falcon": Family(
        "FalconForCausalLM", _text,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "use_cache": False},
    ),
    "bloom": Family(
        "BloomForCausalLM", _text,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4,
         "use_cache": False},
    ),
    # encoder and decoder
    "t5": Family(
        "T5ForConditionalGeneration", _pair,
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
         "num_heads": 4, "relative_attention_num_buckets": 8, "use_cache": False},
    ),
    "bart": Family("BartForConditionalGeneration", _pair, _SEQ2SEQ),
    "mbart": Family("MBartForConditionalGeneration", _pair, _SEQ2SEQ),
    "pegasus": Family("PegasusForConditionalGeneration", _pair, _SEQ2SEQ),
    # vision
    "vit": Family("ViTForImageClassification", _image, _VIT),
    "deit": Family("DeiTForImageClassificationWithTeacher", _image, _VIT),
    "beit": Family(
        "BeitForImageClassification", _image, {**_VIT, "use_relative_position_bias": True,
                                               "drop_path_rate": 0.0}
    ),
    "dinov2": Family("Dinov2ForImageClassification", _image, _VIT),
    "swin": Family(
        "SwinForImageClassification", _image,
        {"image_size": PIXEL, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 4], "window_size": 4, "drop_path_rate": 0.0},
    ),
    "swinv2": Family(
        "Swinv2ForImageClassification", _image,
        {"image_size": PIXEL, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 4], "window_size": 4, "drop_path_rate": 0.0},
    ),
    "convnext": Family(
        "ConvNextForImageClassification", _image,
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "patch_size": 2},
    ),
    "convnextv2": Family(
        "ConvNextV2ForImageClassification", _image,
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "patch_size": 2},
    ),
    "resnet": Family(
        "ResNetForImageClassification", _image,
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2]},
    ),
    "regnet": Family(
        "RegNetForImageClassification", _image,
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2], "groups_width": 8},
    ),
    "segformer": Family(
        "SegformerForSemanticSegmentation", _larger,
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_encoder_blocks": 2,
         "sr_ratios": [4, 2], "patch_sizes": [7, 3], "strides": [4, 2],
         "num_attention_heads": [2, 4], "mlp_ratios": [2, 2], "decoder_hidden_size": 32,
         "drop_path_rate": 0.0, "num_labels": 5},
    ),
    "mobilevit": Family(
        "MobileViTForImageClassification", _larger,
        {"image_size": 64, "patch_size": 2, "hidden_sizes": [16, 24, 32],
         "neck_hidden_sizes": [8, 16, 16, 24, 24, 24, 32], "num_attention_heads": 4,
         "mlp_ratio": 2.0, "expand_ratio": 2.0},
    ),
    "mobilevit_segmentation": Family(
        "MobileViTForSemanticSegmentation", _larger,
        {"image_size": 64, "patch_size": 2, "hidden_sizes": [16, 24, 32],
         "neck_hidden_sizes": [8, 16, 16, 24, 24, 24, 32], "num_attention_heads": 4,
         "mlp_ratio": 2.0, "expand_ratio": 2.0, "num_labels": 5, "aspp_out_channels": 16},
    ),
    "dpt": Family(
        "DPTForSemanticSegmentation", _image,
        {**_VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
         "neck_hidden_sizes": [8, 12, 16, 24], "fusion_hidden_size": 16, "num_labels": 5,
         # In training it computes a head that no output reads: its statistics would not move.
         "use_auxiliary_head": False},
    ),
    "mobilenet_v2": Family(
        "MobileNetV2ForImageClassification", _larger,
        {"image_size": 64, "depth_multiplier": 0.35},
    ),
    "poolformer": Family(
        "PoolFormerForImageClassification", _larger,
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_encoder_blocks": 2,
         "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1], "drop_path_rate": 0.0},
    ),
    "pvt": Family(
        "PvtForImageClassification", _image,
        {"image_size": PIXEL, "hidden_sizes": [16, 32], "depths": [2, 2],
         "num_encoder_blocks": 2, "sequence_reduction_ratios": [2, 1],
         "num_attention_heads": [2, 4], "patch_sizes": [4, 2], "strides": [4, 2],
         "mlp_ratios": [2, 2], "drop_path_rate": 0.0},
    ),
    "cvt": Family(
        "CvtForImageClassification", _larger,
        {"embed_dim": [16, 32], "num_heads": [2, 4], "depth": [1, 2], "patch_sizes": [7, 3],
         "patch_stride": [4, 2], "patch_padding": [2, 1], "mlp_ratio": [2.0, 2.0],
         "attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0],
         "drop_path_rate": [0.0, 0.0], "qkv_bias": [True, True], "cls_token": [False, True],
         "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3],
         "padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1]},
    ),
    # audio
    "wav2vec2": Family("Wav2Vec2ForCTC", _wave, _AUDIO),
    "hubert": Family("HubertForCTC", _wave, _AUDIO),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 20, 40), "decoder_input_ids": _ids(8)},
        {**{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"},
         "num_mel_bins": 20, "max_source_positions": 20, "max_target_positions": 20,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
         "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "sew": Family("SEWForCTC", _wave, {**_AUDIO, "squeeze_factor": 1}),
    "unispeech": Family("UniSpeechForCTC", _wave, {**_AUDIO, "num_ctc_classes": 20}),
    "speech_to_text": Family(
        "Speech2TextForConditionalGeneration", _spectrum,
        {**{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"},
         "input_feat_per_channel": 20, "conv_channels": 24, "max_source_positions": 40,
         "max_target_positions": 20},
    ),
    "audio_spectrogram": Family(
        "ASTForAudioClassification", lambda: {"input_values": torch.randn(2, 24, 16)},
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "patch_size": 8, "frequency_stride": 8, "time_stride": 8,
         "max_length": 24, "num_mel_bins": 16},
    ),
    # text and image
    "clip": Family("CLIPModel", _text_and_image, _TWO_TOWERS),
    "siglip": Family("SiglipModel", _text_and_image, _TWO_TOWERS),
}  # fmt: skip


def _transformers() -> list[Entry]:
    return [Entry(name, "transformers", make) for name, make in FAMILIES.items()]


# -- our own ------------------------------------------------------------------------------------


def _handmade() -> list[Entry]:
    if importlib.util.find_spec("tests.zoo.handmade") is None:
        return []
    made = importlib.import_module("tests.zoo.handmade").HANDMADE
    return [Entry(name, "handmade", make) for name, make in made.items()]
