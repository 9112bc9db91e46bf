"""What equal tokens may stand for: models whose KV follows from more are refused by name."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import kvtier

torch = pytest.importorskip("torch", reason="torch is not installed; make test-vllm installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; make test-vllm installs it"
)

from kvtier.adapters.transformers import namespace_of, save_prefix  # noqa: E402
from kvtier.adapters.transformers.model_support import check_model  # noqa: E402

OpenStore = Callable[..., kvtier.BlockStore]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
    "factor": 2.0,
}


def make_config(**changes: object) -> "transformers.LlamaConfig":
    return transformers.LlamaConfig(**{**SIZES, **changes})


def make_rope(**fields: object) -> "transformers.LlamaConfig":
    return make_config(rope_parameters={"rope_theta": 10000.0, **fields})


def make_model() -> "transformers.LlamaForCausalLM":
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(make_config()).eval()


def has_one_kind_of_input() -> Iterator[object]:
    yield make_config()
    yield transformers.Qwen2Config(**SIZES)
    yield transformers.GPT2Config(n_layer=1)
    yield transformers.GPTNeoXConfig(num_hidden_layers=1)  # It says is_decoder=False.
    yield transformers.BertConfig(is_decoder=True)
    yield transformers.MptConfig()  # Its attn_config is no other model.


def has_other_inputs() -> Iterator[tuple[object, str]]:
    yield transformers.LlavaConfig(), "'llava' has other models in it .*text_config, vision_config"
    yield transformers.Qwen2VLConfig(), "'qwen2_vl' has other models in it"
    yield transformers.Qwen2VLConfig().text_config, "'qwen2_vl_text' is not a known causal"
    yield transformers.PaliGemmaConfig(), "'paligemma' has other models in it"
    yield transformers.MllamaConfig(), "'mllama' has other models in it"
    yield transformers.Qwen2AudioConfig(), "'qwen2_audio' has other models in it"
    yield transformers.GitConfig(), r"'git' has other models in it \(vision_config\)"
    yield transformers.T5Config(), "'t5' attends to the output of an encoder"
    yield transformers.BartConfig(), "'bart' attends to the output of an encoder"
    yield transformers.WhisperConfig(), "'whisper' attends to the output of an encoder"
    yield (
        transformers.GPT2Config(add_cross_attention=True),
        "'gpt2' attends to the output of an enc",
    )
    yield transformers.TrOCRConfig(is_decoder=True), "'trocr' is not a known causal"


def looks_both_ways() -> Iterator[tuple[object, str]]:
    yield transformers.BertConfig(), "'bert' has is_decoder=False"
    yield transformers.DistilBertConfig(), "'distilbert' is not a known causal language model"
    yield transformers.XLNetConfig(), "'xlnet' is not a known causal language model"
    yield transformers.CpmAntConfig(), "'cpmant' is not a known causal language model"
    two_way = transformers.GemmaConfig(use_bidirectional_attention=True)
    yield two_way, "'gemma' has use_bidirectional_attention"
    yield make_config(is_causal=False), "'llama' has is_causal=False"
    yield make_config(is_decoder=False), "'llama' has is_decoder=False"
    yield make_config(prefix_lm=True), "'llama' has prefix_lm"


@pytest.mark.parametrize("config", list(has_one_kind_of_input()), ids=lambda it: it.model_type)
def test_a_causal_model_of_text_is_served(config: object) -> None:
    check_model(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [*has_other_inputs(), *looks_both_ways()],
    ids=lambda it: it if isinstance(it, str) else it.model_type,
)
def test_a_model_whose_kv_follows_from_more_than_tokens_is_refused(
    open_store: OpenStore, config: object, message: str
) -> None:
    with pytest.raises(kvtier.UnsupportedError, match=message) as caught:
        namespace_of(open_store(), config, dtype=torch.float32, fingerprint="w")
    assert "use a causal, text-only model that transformers knows" in str(caught.value)


def test_a_model_made_to_look_both_ways_is_refused(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    model.model.layers[0].self_attn.is_causal = False
    with pytest.raises(kvtier.UnsupportedError, match="'llama' has a module with is_causal=False"):
        namespace_of(store, model, fingerprint="w")
    model.model.layers[0].self_attn.is_causal = True
    namespace_of(store, model, fingerprint="w")


def test_a_model_from_elsewhere_is_refused() -> None:
    class OtherConfig(transformers.PretrainedConfig):  # type: ignore[misc, name-defined]
        model_type = "other"

    with pytest.raises(kvtier.UnsupportedError, match="'other' is not a known causal"):
        check_model(OtherConfig())


@pytest.mark.parametrize(
    "config",
    [
        make_rope(),
        make_rope(rope_type="default"),
        make_rope(rope_type="linear", factor=2.0),
        make_rope(rope_type="yarn", factor=2.0, original_max_position_embeddings=1024),
        make_rope(**LLAMA3),
        make_rope(rope_type="proportional", partial_rotary_factor=0.25),
    ],
    ids=lambda it: str(it.rope_parameters.get("rope_type")),
)
def test_rope_of_the_configuration_alone_is_served(config: object) -> None:
    check_model(config)


def test_rope_that_changes_with_the_length_is_refused(open_store: OpenStore) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    refused = {
        "dynamic": make_rope(**dynamic),
        "longrope": make_rope(**LONGROPE),
        # As configurations of older models have it.
        "'dynamic": make_config(rope_scaling={"type": "dynamic", "factor": 2.0}),
        "made_up": make_rope(rope_type="made_up"),
    }
    for name, config in refused.items():
        with pytest.raises(kvtier.UnsupportedError, match=f"'llama' has RoPE of the type '?{name}"):
            namespace_of(open_store(), config, dtype=torch.float32, fingerprint="w")


def test_rope_of_one_kind_of_layers_that_changes_with_the_length_is_refused() -> None:
    config = make_config()
    config.rope_parameters = {"full_attention": LLAMA3, "other_attention": LLAMA3}
    check_model(config)
    config.rope_parameters = {"full_attention": LLAMA3, "other_attention": LONGROPE}
    with pytest.raises(kvtier.UnsupportedError, match="RoPE of the type 'longrope'"):
        check_model(config)


def test_k_of_the_refused_rope_does_change_with_the_length() -> None:
    torch.manual_seed(3)
    tokens = torch.arange(1, 61)[None]

    def first_keys(config: object) -> list["torch.Tensor"]:
        model = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            caches = [model(tokens[:, :n], use_cache=True).past_key_values for n in (16, 60)]
        return [it.layers[0].keys[:, :, :16] for it in caches]

    length = {"max_position_embeddings": 32}
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    short, long = first_keys(make_config(rope_parameters=dynamic, **length))
    assert not torch.allclose(short, long, atol=1e-3)
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    short, long = first_keys(make_config(rope_parameters=linear, **length))
    assert torch.allclose(short, long, atol=1e-5)


def test_a_model_with_adapters_needs_a_name_for_them(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    plain = namespace_of(store, model, fingerprint="w")
    model.peft_config = {"poems": SimpleNamespace(peft_type="LORA", is_prompt_learning=False)}
    for adapter in (None, ""):
        with pytest.raises(kvtier.UsageError, match=r"adapters \('poems'\).*pass adapter="):
            namespace_of(store, model, fingerprint="w", adapter=adapter)
    cache, tokens = transformers.DynamicCache(), torch.arange(64)
    with pytest.raises(kvtier.UsageError, match="pass adapter= to namespace_of"):
        save_prefix(store, cache, tokens, model=model, fingerprint="w")
    named = namespace_of(store, model, fingerprint="w", adapter="poems 1")
    assert named.id != plain.id
    model.peft_config = {}
    assert namespace_of(store, model, fingerprint="w").id == plain.id


def test_adapters_of_a_part_of_the_model_count_too(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    model.model.layers[0].self_attn.q_proj.active_adapters = ["poems"]
    with pytest.raises(kvtier.UsageError, match=r"adapters \('poems'\)"):
        namespace_of(store, model, fingerprint="w")
    namespace_of(store, model, fingerprint="w", adapter="poems 1")


@pytest.mark.parametrize(
    "fields", [{"is_prompt_learning": True}, {"alora_invocation_tokens": [5, 6]}], ids=repr
)
def test_adapters_that_depend_on_more_than_weights_are_refused(
    open_store: OpenStore, fields: dict[str, object]
) -> None:
    store, model = open_store(), make_model()
    model.peft_config = {"poems": SimpleNamespace(**fields)}
    with pytest.raises(kvtier.UnsupportedError, match="adapter 'poems' is of the kind"):
        namespace_of(store, model, fingerprint="w", adapter="poems 1")
