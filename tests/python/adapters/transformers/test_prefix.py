"""A transformers model with prefixes from the store: the same logits, the same tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest

import kvtier

torch = pytest.importorskip("torch", reason="torch is not installed; make test-vllm installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; make test-vllm installs it"
)

from document_pages import ROOT, Page  # noqa: E402

from kvtier.adapters.transformers import load_prefix, namespace_of, save_prefix  # noqa: E402
from kvtier.adapters.transformers.prefix import list_tokens  # noqa: E402

OpenStore = Callable[..., kvtier.BlockStore]
PROMPT = torch.arange(1, 101)[None]


def make_config(**changes: object) -> "transformers.LlamaConfig":
    sizes: dict[str, object] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return transformers.LlamaConfig(**{**sizes, **changes})


def make_model(dtype: "torch.dtype" = torch.float32) -> "transformers.LlamaForCausalLM":
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(make_config()).eval().to(dtype)


def compute(model: object, tokens: object, cache: object = None) -> object:
    with torch.no_grad():
        return model(tokens, past_key_values=cache, use_cache=True)  # type: ignore[operator]


def generate(model: object, cache: object) -> list[int]:
    ids = model.generate(  # type: ignore[attr-defined]
        PROMPT,
        attention_mask=torch.ones_like(PROMPT),
        past_key_values=cache,
        max_new_tokens=12,
        do_sample=False,
    )
    return ids[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_restored_prefix_gives_the_same_logits_and_tokens(
    open_store: OpenStore, dtype: "torch.dtype"
) -> None:
    model, ns_store = make_model(dtype), open_store()
    ns = namespace_of(ns_store, model, fingerprint="w")
    first = compute(model, PROMPT)
    assert save_prefix(ns, first.past_key_values, PROMPT) == 6
    cache, num_tokens = load_prefix(ns, PROMPT)
    assert num_tokens == cache.get_seq_length() == 96
    for restored, computed in zip(cache.layers, first.past_key_values.layers, strict=True):
        assert restored.keys.dtype == dtype
        assert torch.equal(restored.keys, computed.keys[:, :, :96])
        assert torch.equal(restored.values, computed.values[:, :, :96])
    # Beside a cache that was never away, cut to the same length: bit for bit.
    kept = compute(model, PROMPT).past_key_values
    kept.crop(96 - 100)
    rest = compute(model, PROMPT[:, num_tokens:], cache)
    assert torch.equal(rest.logits, compute(model, PROMPT[:, num_tokens:], kept).logits)
    if dtype == torch.float32:
        assert torch.allclose(rest.logits, first.logits[:, num_tokens:], atol=1e-5)
        assert generate(model, load_prefix(ns, PROMPT)[0]) == generate(model, None)


def test_a_prefix_is_found_after_a_restart(open_store: OpenStore, disk_folder: Path) -> None:
    model = make_model()
    expected = generate(model, None)
    with open_store(disk_folder / "store") as store:
        cache = compute(model, PROMPT).past_key_values
        save_prefix(store, cache, PROMPT, model=model, fingerprint="w")
    with open_store(disk_folder / "store") as store:
        again = make_model()
        cache, num_tokens = load_prefix(store, PROMPT, model=again, fingerprint="w")
        assert num_tokens == 96
        assert generate(again, cache) == expected


def test_the_longest_prefix_counts_and_one_changed_token_ends_it(open_store: OpenStore) -> None:
    model = make_model()
    ns = namespace_of(open_store(), model, fingerprint="w")
    save_prefix(ns, compute(model, PROMPT).past_key_values, PROMPT)
    other = PROMPT.clone()
    other[0, 40] += 1
    assert load_prefix(ns, other)[1] == 32
    other[0, 0] += 1
    cache, num_tokens = load_prefix(ns, other)
    assert (num_tokens, cache.get_seq_length()) == (0, 0)
    # One token is left to compute, and a prompt that ends within a block loads what is whole.
    assert load_prefix(ns, PROMPT[:, :96])[1] == 80
    assert load_prefix(ns, PROMPT[:, :97])[1] == 96
    assert load_prefix(ns, [])[1] == 0


def test_a_longer_cache_adds_its_new_blocks_only(open_store: OpenStore) -> None:
    model, store = make_model(), open_store()
    ns = namespace_of(store, model, fingerprint="w", block_tokens=8)
    cache = compute(model, PROMPT[:, :40]).past_key_values
    assert save_prefix(ns, cache, PROMPT) == 5
    cache = compute(model, PROMPT[:, 40:], cache).past_key_values
    assert save_prefix(ns, cache, PROMPT) == 12
    tier = store.stats()["tiers"]["host"]
    assert tier["inserted"] == 12
    assert save_prefix(ns, cache, PROMPT) == 12
    assert store.stats()["tiers"]["host"]["bytes_written"] == tier["bytes_written"]


def test_models_that_differ_do_not_share(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    save_prefix(namespace_of(store, model, fingerprint="w"), compute(model, PROMPT)[1], PROMPT)
    others = {
        "weights": namespace_of(store, model, fingerprint="v"),
        "config": namespace_of(
            store, make_config(rms_norm_eps=1e-3), fingerprint="w", dtype=torch.float32
        ),
        "dtype": namespace_of(store, model, fingerprint="w", dtype=torch.bfloat16),
        "adapter": namespace_of(store, model, fingerprint="w", adapter="a"),
        "tenant": namespace_of(store, model, fingerprint="w", salt="s"),
    }
    assert {name: load_prefix(ns, PROMPT)[1] for name, ns in others.items()} == dict.fromkeys(
        others, 0
    )
    assert load_prefix(namespace_of(store, model, fingerprint="w"), PROMPT)[1] == 96


def test_a_configuration_stands_for_its_model_and_says_its_dtype(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    by_model = namespace_of(store, model, fingerprint="w")
    assert namespace_of(store, model.config, fingerprint="w", dtype=torch.float32).id == by_model.id
    assert namespace_of(store, make_config(dtype="float32"), fingerprint="w").id == by_model.id
    with pytest.raises(kvtier.UsageError, match="neither model nor configuration states a dtype"):
        namespace_of(store, make_config(), fingerprint="w")


def test_what_does_not_fit_is_refused_and_nothing_is_stored(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    ns = namespace_of(store, model, fingerprint="w")
    pair = compute(model, PROMPT.repeat(2, 1)).past_key_values
    with pytest.raises(kvtier.UsageError, match="2 sequences; save them one at a time"):
        save_prefix(ns, pair, PROMPT)
    with pytest.raises(kvtier.UsageError, match="2 sequences; pass them one at a time"):
        load_prefix(ns, PROMPT.repeat(2, 1))
    small = transformers.LlamaForCausalLM(make_config(num_hidden_layers=1)).eval()
    with pytest.raises(kvtier.UsageError, match="has 1 layers, the namespace 3"):
        save_prefix(ns, compute(small, PROMPT).past_key_values, PROMPT)
    wide = transformers.LlamaForCausalLM(make_config(num_key_value_heads=4)).eval()
    with pytest.raises(kvtier.UsageError, match=r"layer 0, keys: shape \(1, 4, 100, 16\)"):
        save_prefix(ns, compute(wide, PROMPT).past_key_values, PROMPT)
    half = compute(make_model(torch.float16), PROMPT).past_key_values
    with pytest.raises(kvtier.UsageError, match="make it of this model, or with dtype="):
        save_prefix(ns, half, PROMPT)
    with pytest.raises(kvtier.UsageError, match="make it with namespace_of"):
        load_prefix(store.namespace(model="m", block_bytes=64, fingerprint="w"), PROMPT)
    with pytest.raises(kvtier.UsageError, match="pass model="):
        load_prefix(store, PROMPT)
    assert store.stats()["tiers"]["host"]["inserted"] == 0


def test_a_cache_before_its_forward_pass_is_refused_and_nothing_is_stored(
    open_store: OpenStore,
) -> None:
    store, model = open_store(), make_model()
    ns = namespace_of(store, model, fingerprint="w")
    cache = transformers.DynamicCache(config=model.config)
    with pytest.raises(kvtier.UsageError, match="layer 0, keys: the cache is empty"):
        save_prefix(ns, cache, PROMPT)
    with pytest.raises(kvtier.UsageError, match="has 0 layers, the namespace 3"):
        save_prefix(ns, transformers.DynamicCache(), PROMPT)
    assert store.stats()["tiers"]["host"]["inserted"] == 0
    assert save_prefix(ns, compute(model, PROMPT, cache).past_key_values, PROMPT) == 6


def test_a_cache_of_half_a_forward_pass_is_refused(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    ns = namespace_of(store, model, fingerprint="w")
    cache = compute(model, PROMPT[:, :40]).past_key_values
    layer = cache.layers[0]
    cache.update(layer.keys[:, :, :8], layer.values[:, :, :8], 0)
    with pytest.raises(kvtier.UsageError, match=r"layers hold \[40, 48\] tokens"):
        save_prefix(ns, cache, PROMPT)
    assert store.stats()["tiers"]["host"]["inserted"] == 0


def test_windows_and_static_caches_are_refused_by_name(open_store: OpenStore) -> None:
    store, model = open_store(), make_model()
    sliding = transformers.MistralConfig(num_hidden_layers=1, sliding_window=32)
    with pytest.raises(kvtier.UnsupportedError, match="DynamicSlidingWindowLayer"):
        namespace_of(store, sliding, dtype=torch.float32, fingerprint="w")
    ns = namespace_of(store, model, fingerprint="w")
    static = transformers.StaticCache(config=model.config, max_cache_len=128)
    with pytest.raises(kvtier.UnsupportedError, match="StaticLayer"):
        save_prefix(ns, static, PROMPT)


def test_tokens_come_in_any_form() -> None:
    assert list_tokens([1, 2]) == list_tokens((1, 2)) == list_tokens([[1, 2]]) == [1, 2]
    assert list_tokens(torch.tensor([[1, 2]])) == list_tokens(torch.tensor([1, 2])) == [1, 2]
    assert list_tokens([]) == []
    assert list_tokens(list(torch.arange(2).numpy())) == [0, 1]


@pytest.mark.parametrize(
    "token_ids",
    [
        [torch.arange(64)],
        list(torch.arange(64)),
        torch.tensor(7),
        torch.tensor([[[1], [2]]]),
        torch.tensor([1.0]),
        torch.ones(64, dtype=torch.bool),
        {"input_ids": torch.arange(64)},
        "a prompt",
        None,
    ],
    ids=lambda it: repr(it)[:20],
)
def test_what_is_no_token_id_is_refused(token_ids: object) -> None:
    with pytest.raises(kvtier.UsageError, match="is no token id: pass a list of integers"):
        list_tokens(token_ids)


def test_the_example_of_the_guide_hits_in_its_second_run(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page(ROOT / "docs/transformers.md", (ROOT / "docs/transformers.md").read_text())
    example = next(it for it in page.blocks if "LlamaConfig(" in it.text)
    monkeypatch.chdir(disk_folder)
    said = []
    for _ in range(2):
        exec(compile(example.text, example.place, "exec"), {})
        said.append(capsys.readouterr().out.split(", next token "))
    assert [it[0] for it in said] == ["0 tokens found", "96 tokens found"]
    assert said[0][1] == said[1][1]
