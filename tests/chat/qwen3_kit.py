"""Qwen3's own tokenizer, out of files that are at hand without a download.

`qwen.tiktoken` comes with the package dashscope; ranks are the ids of ordinary tokens, special tokens begin
at 151643.
"""

from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>
<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|>
<|video_pad|>""".split()
MARKS = """<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|>
<|file_sep|> <tool_response> </tool_response> <think> </think>""".split()
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def vocabulary_file() -> Path:
    """Where dashscope keeps it; the package is not imported."""
    return Path(find_spec("dashscope").submodule_search_locations[0]) / "resources/qwen.tiktoken"


def qwen3_tokenizer() -> PreTrainedTokenizerFast:
    """Qwen3's ids and chat template (some seconds)."""
    core = TikTokenConverter(str(vocabulary_file()), pattern=SPLIT).converted()
    core.normalizer = normalizers.NFC()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    core.add_tokens([AddedToken(t, normalized=False) for t in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=131072
    )
    tokenizer.chat_template = Path(__file__).with_name("qwen3.jinja").read_text(encoding="utf-8")
    return tokenizer
