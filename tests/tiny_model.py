"""Small models made on the spot, in the architecture of Qwen2, with a tokenizer of their own."""

from pathlib import Path
from pydoc_data.topics import topics

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model(
    folder: Path,
    *,
    width: int = 128,
    layers: int = 2,
    vocabulary: int = 2_000,
    max_length: int = 16_384,
    spread: float = 0.3,
    seed: int = 0,
) -> Path:
    """Save a model of random weights with its tokenizer to `folder`.

    Args:
        folder: where to; made if need be.
        width: of the hidden states; heads are 64 wide.
        layers: number of them.
        vocabulary: tokens of the byte-pair encoding, which is learned from Python's own manual
            and knows ASCII only, so that whatever the model writes is text.
        max_length: of the context, in tokens.
        spread: standard deviation of the weights. Large, so that the likeliest token is far
            ahead and engines that round differently still agree.
        seed: of the weights.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    pairs = Tokenizer(models.BPE(unk_token="<unk>"))
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    special = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    text = (line.encode("ascii", "ignore").decode() for line in sorted(topics.values()))
    learning = {"vocab_size": vocabulary, "special_tokens": special, "show_progress": False}
    pairs.train_from_iterator(text, trainers.BpeTrainer(**learning))
    named = {"unk_token": "<unk>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    options = {"chat_template": CHATML, "model_max_length": max_length, **named}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pairs, **options)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        max_position_embeddings=max_length,
        initializer_range=spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def tiny_adapter(model: Path | str, folder: Path, *, rank: int = 8, seed: int = 1) -> Path:
    """Save random LoRA weights for a `tiny_model`, large enough to change what it writes."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(Qwen2ForCausalLM.from_pretrained(model), config)
    adapted.save_pretrained(folder)
    return folder
