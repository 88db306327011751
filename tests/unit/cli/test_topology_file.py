"""What a topology file may hold, and what each refusal says."""

import pytest

from pdd.cli.options import ENGINE_CHOICES
from pdd.cli.topology.choose import choose_topology
from pdd.cli.topology.file import (
    load_simulated_topology,
    load_topology,
    packaged_topologies,
    parse_topology,
    simulated_topologies,
)
from pdd.cli.topology.wiring import Exposure
from pdd.core.errors import ConfigError
from pdd.core.request import Role
from pdd.core.topology import EngineKind
from pdd.engine.catalog import model_of
from tests.support.published import tiny_folder

GOOD = """
name = "test"
model = "tiny-random"
max_model_tokens = 1024

[[nodes]]
name = "node-a"
cluster = "A"
arena = "8 MiB"

[[nodes]]
name = "node-b"
cluster = "B"
arena_bytes = 8388608

[[engines]]
name = "P"
role = "prefill"
cluster = "A"
node = "node-a"

[[engines]]
name = "RLD"
role = "relay_decode"
cluster = "A"
node = "node-a"

[[engines]]
name = "MD"
role = "main_decode"
cluster = "B"
node = "node-b"
token_interval = "5 ms"

[[links]]
name = "wan"
clusters = ["A", "B"]
rate = "20 Mbit/s"
delay = "15 ms"

[router]
cluster = "A"
port = 8000

[router.policy]
relay_threshold = "1.5 s"
"""


def load(tmp_path, text, **options):
    file = tmp_path / "test.toml"
    file.write_text(text)
    return load_topology(str(file), **options)


def test_units_and_plain_numbers_mean_the_same(tmp_path):
    topology = load(tmp_path, GOOD)
    assert [node.arena_bytes for node in topology.nodes] == [8 * 2**20, 8 * 2**20]
    link = topology.link("wan")
    assert (link.rate_bits_per_s, link.delay_s) == (20e6, 0.015)
    assert topology.engine("MD").token_interval_s == 0.005
    assert topology.router.policy.relay_threshold_s == 1.5


@pytest.mark.parametrize("name", packaged_topologies())
def test_packaged_topologies_are_right_and_named_after_their_file(name):
    topology = load_topology(name)
    assert topology.name == name
    assert topology.router.port == 8000
    num_engines = 2 if name.startswith("wide") else 1
    assert {role: len(topology.engines_of(role)) for role in Role} == dict.fromkeys(Role, num_engines)
    assert len({engine.node for engine in topology.engines}) == len(topology.engines)


def test_engines_that_share_a_kv_format_may_be_mixed():
    kinds = {engine.name: engine.kind for engine in load_topology("mixed-tiny").engines}
    assert kinds == {"P": EngineKind.EMBEDDED, "RLD": EngineKind.EMBEDDED, "MD": EngineKind.VLLM}


def test_an_engine_stands_for_a_packaged_topology():
    assert choose_topology(None, None).name == "default"
    assert [choose_topology(engine, None).name for engine in ENGINE_CHOICES] == ["default", "vllm", "mixed"]
    assert choose_topology(None, "scripted").name == "scripted"


def test_an_engine_beside_a_named_topology_is_refused():
    with pytest.raises(ConfigError, match="--engine vllm: topology 'tiny' says itself which engines run"):
        choose_topology("vllm", "tiny")


def test_the_default_topology_is_the_documented_one():
    topology = load_topology("default")
    assert topology.model == "smollm2-135m-instruct"
    assert [(e.name, e.cluster, e.node) for e in topology.engines] == [
        ("P", "A", "node-p"),
        ("RLD", "A", "node-rld"),
        ("MD", "B", "node-md"),
    ]
    (link,) = topology.links
    assert (set(link.clusters), link.rate_bits_per_s, 2 * link.delay_s) == ({"A", "B"}, 20e6, 0.030)


def change(old, new):
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


LINK_AGAIN = '\n[[links]]\nname = "two"\nclusters = ["B", "A"]\nrate = "1 Mbit/s"\n'

REFUSED = {
    "not TOML": ("foo\n" + GOOD, ["not valid TOML", "line"]),
    "an unknown key": (change('model = "tiny-random"', 'modell = "tiny-random"'), ["modell", "did you mean 'model'"]),
    "an unknown nested key": (
        change('arena = "8 MiB"', 'arenas = "8 MiB"'),
        ["nodes[0].arenas", "did you mean 'arena'"],
    ),
    "an unknown key like no other": (change("port = 8000", "zzz = 1"), ["router.zzz", "known keys", "tenants"]),
    "an unknown policy key": (
        change("relay_threshold =", "relay_treshold ="),
        ["router.policy.relay_treshold", "did you mean 'relay_threshold'"],
    ),
    "a missing key": (change('cluster = "A"\narena', "arena"), ["nodes[0].cluster", "missing"]),
    "no nodes": ("name = 'x'\nmodel = 'scripted'\nengines = []\n[router]\ncluster='A'", ["nodes", "missing"]),
    "a quantity given twice": (
        change('arena = "8 MiB"', 'arena = "8 MiB"\narena_bytes = 5'),
        ["nodes[0].arena", "again as 'arena_bytes'"],
    ),
    "a unit that isn't one": (
        change("20 Mbit/s", "20 MB/s"),
        ["links[0].rate = '20 MB/s'", "Mbit/s", 'such as "20 Mbit/s"'],
    ),
    "a plain number where a unit is needed": (
        change('delay = "15 ms"', "delay = 15"),
        ["links[0].delay = 15", "'delay_s'"],
    ),
    "a string where a number is needed": (
        change("arena_bytes = 8388608", 'arena_bytes = "8 MiB"'),
        ["nodes[1].arena_bytes = '8 MiB'", "expected `int`"],
    ),
    "a wrong type": (change("port = 8000", 'port = "http"'), ["router.port = 'http'", "expected `int`"]),
    "a link between three": (change('["A", "B"]', '["A", "B", "C"]'), ["links[0].clusters", "length"]),
    "an unknown role": (
        change('"prefill"', '"prefil"'),
        ["engines[0].role = 'prefil'", "prefill, relay_decode, main_decode"],
    ),
    "a key of vLLM's for another engine": (
        change('role = "prefill"', 'role = "prefill"\ntensor_parallel = 2'),
        ["engines[0].tensor_parallel = 2", "only vllm engines", "'P' is embedded"],
    ),
    "no block of vLLM's": (
        change('role = "prefill"', 'role = "prefill"\nkind = "vllm"\ncache_block_tokens = 0'),
        ["engines[0].cache_block_tokens = 0", "at least 1"],
    ),
    "no device for vLLM": (
        change('role = "prefill"', 'role = "prefill"\nkind = "vllm"\ntensor_parallel = 0'),
        ["engines[0].tensor_parallel = 0", "at least 1"],
    ),
    "an unknown kind": (
        change('role = "prefill"', 'role = "prefill"\nkind = "sglang"'),
        ["engines[0].kind = 'sglang'", "embedded, scripted, vllm"],
    ),
    "kinds that can't share KV": (
        change('role = "main_decode"', 'role = "main_decode"\nkind = "scripted"'),
        ["engines[2].kind = 'scripted'", "engine 'P' is embedded"],
    ),
    "an embedded engine without weights": (
        change('"tiny-random"', '"scripted"'),
        ["engines[0].kind = 'embedded'", "no weights"],
    ),
    "a missing role": (
        change('role = "relay_decode"', 'role = "prefill"'),
        ["engines", 'none has role = "relay_decode"'],
    ),
    "an unknown node": (
        change('node = "node-b"', 'node = "node-c"'),
        ["engines[2].node = 'node-c'", "node-a, node-b"],
    ),
    "an engine's node elsewhere": (
        change('node = "node-b"', 'node = "node-a"'),
        ["engines[2].node = 'node-a'", "cluster 'A'", "engine 'MD' is in 'B'"],
    ),
    "an unknown cluster of the router": (
        change('[router]\ncluster = "A"', '[router]\ncluster = "C"'),
        ["router.cluster = 'C'", "clusters: A, B"],
    ),
    "an unknown cluster of a link": (change('["A", "B"]', '["A", "C"]'), ["links[0].clusters[1] = 'C'", "A, B"]),
    "a link to itself": (change('["A", "B"]', '["A", "A"]'), ["links[0].clusters", "two different clusters"]),
    "two links between the same": (GOOD + LINK_AGAIN, ["links[1].clusters", "'wan' joins these already"]),
    "a forward to nobody": (
        change('delay = "15 ms"', 'forwards = { "node-x" = 5000 }'),
        ["links[0].forwards.node-x", "no node or engine"],
    ),
    "a name used twice": (
        change('name = "RLD"', 'name = "node-a"'),
        ["engines[1].name = 'node-a'", "nodes[0] has this name"],
    ),
    "the router's name": (change('name = "wan"', 'name = "router"'), ["links[0].name = 'router'", "the router"]),
    "a name that is a path": (change('name = "P"', 'name = "../P"'), ["engines[0].name = '../P'", "letters"]),
    "a topology's name that is a path": (change('name = "test"', 'name = "a/b"'), ["name = 'a/b'", "letters"]),
    "an unknown model": (
        change('"tiny-random"', '"gpt-9"'),
        ["model = 'gpt-9'", "unknown model", "smollm2-135m-instruct"],
    ),
    "too many tokens for the model": (
        change("max_model_tokens = 1024", "max_model_tokens = 100000"),
        ["max_model_tokens = 100000", "at most 8192"],
    ),
    "KV formats that differ": (
        change("arena_bytes = 8388608", "arena_bytes = 8388608\nblock_tokens = 32"),
        ["nodes[1].block_tokens = 32", "block=32", "block=16", "node-a"],
    ),
    "an arena smaller than one request": (
        change('arena = "8 MiB"', 'arena = "100 KB"'),
        ["nodes[0].arena = '100 KB'", "max_model_tokens = 1024", "bytes"],
    ),
    "a cache smaller than one request": (
        change('role = "prefill"', 'role = "prefill"\ncache_tokens = 512'),
        ["engines[0].cache_tokens = 512", "max_model_tokens = 1024"],
    ),
    "a rate of zero": (change("20 Mbit/s", "0 Mbit/s"), ["links[0].rate = '0 Mbit/s'", "more than 0"]),
    "a negative delay": (change('delay = "15 ms"', "delay_s = -0.1"), ["links[0].delay_s = -0.1", "at least 0"]),
    "an infinite delay": (change('delay = "15 ms"', "delay_s = inf"), ["links[0].delay_s = inf", "at most 60"]),
    "a delay that is no number": (change('delay = "15 ms"', "delay_s = nan"), ["links[0].delay_s = nan"]),
    "a rate that is infinite": (change('rate = "20 Mbit/s"', "rate_bits_per_s = inf"), ["rate_bits_per_s = inf"]),
    "blocks of no tokens": (
        change("max_model_tokens = 1024", "max_model_tokens = 1024\nblock_tokens = 0"),
        ["block_tokens = 0", "at least 1"],
    ),
    "a port beyond the last": (change("port = 8000", "port = 70000"), ["router.port = 70000", "65535"]),
    "a port used twice": (
        change('arena = "8 MiB"', 'arena = "8 MiB"\nport = 8000'),
        ["nodes[0].port = 8000", "router.port has this port already"],
    ),
    "a node off loopback": (
        change('arena = "8 MiB"', 'arena = "8 MiB"\nhost = "10.0.0.1"'),
        ["nodes[0].host = '10.0.0.1'", "--insecure-plaintext"],
    ),
    "two tenants with one key": (
        change(
            "port = 8000",
            'port = 8000\ntenants = [{name = "a", api_key = "k"}, {name = "b", api_key = "k"}]',
        ),
        ["router.tenants", "two tenants share one api_key"],
    ),
    "a threshold without end": (
        change('relay_threshold = "1.5 s"', "relay_threshold_s = inf"),
        ["router.policy.relay_threshold_s = inf", "finite"],
    ),
    "a share of more than all": (
        change('relay_threshold = "1.5 s"', "filter_max_share = 1.5"),
        ["router.policy.filter_max_share = 1.5", "from 0 to 1"],
    ),
    "a share that is no number": (
        change('relay_threshold = "1.5 s"', "one_shot_load = nan"),
        ["router.policy.one_shot_load = nan", "from 0 to 1"],
    ),
    "a rule that nobody knows": (
        change('relay_threshold = "1.5 s"', 'route = "guess"'),
        ["router.policy.route = 'guess'", "missing_bytes", "hit_rate"],
    ),
    "a conversation that ends before it began": (
        change('relay_threshold = "1.5 s"', 'conversation_ttl = "-1 s"'),
        ["router.policy.conversation_ttl = '-1 s'"],
    ),
    "a worker that is down before it was asked": (
        GOOD + "[router.health]\nchecks_to_down = 0\n",
        ["router.health.checks_to_down = 0", "at least 1"],
    ),
    "health checks without a pause": (
        GOOD + '[router.health]\ninterval = "0 s"\n',
        ["router.health.interval = '0 s'", "more than 0"],
    ),
    "health checks that take for ever": (
        GOOD + "[router.health]\ntimeout_s = 1e6\n",
        ["router.health.timeout_s = 1000000.0", "at most 60"],
    ),
    "a breaker that opens for nothing": (
        GOOD + "[router.health]\nbreaker_failures = 0\n",
        ["router.health.breaker_failures = 0", "at least 1"],
    ),
    "a queue of less than nobody": (
        GOOD + "[router.admission]\nmax_queued_requests = -1\n",
        ["router.admission.max_queued_requests = -1", "at least 0"],
    ),
    "a queue without an end": (
        GOOD + "[router.admission]\nmax_queue_s = inf\n",
        ["router.admission.max_queue_s = inf", "finite"],
    ),
    "a promise that nobody can keep": (
        GOOD + '[router.sla]\ntpot = "0 s"\n',
        ["router.sla.tpot = '0 s'", "more than 0"],
    ),
    "a tenant without weight": (
        GOOD + '[[router.tenants]]\nname = "t"\napi_key = "k"\nweight = 0\n',
        ["router.tenants[0].weight = 0", "0.001 to 1000"],
    ),
    "a tenant beside whom nobody else would count": (
        GOOD + '[[router.tenants]]\nname = "t"\napi_key = "k"\nweight = 1e18\n',
        ["router.tenants[0].weight = 1e+18", "0.001 to 1000"],
    ),
    "conversations that live for ever": (
        change('relay_threshold = "1.5 s"', "conversation_ttl_s = inf"),
        ["router.policy.conversation_ttl_s = inf", "finite"],
    ),
    "a live engine that only computes time": (
        change('role = "prefill"', 'role = "prefill"\nkind = "modelled"'),
        ["engines[0].kind = 'modelled'", "pdd sim run"],
    ),
    "hardware that is really there": (
        change('role = "prefill"', 'role = "prefill"\nhardware = "H200-SXM"'),
        ["engines[0].hardware = 'H200-SXM'", "only modelled"],
    ),
    "an engine of no chips": (
        change('role = "prefill"', 'role = "prefill"\nnum_chips = 0'),
        ["engines[0].num_chips = 0", "at least 1"],
    ),
    "an origin that every page has": (
        change("port = 8000", 'port = 8000\nallowed_origins = ["https://a.example", "null"]'),
        ["router.allowed_origins[1] = 'null'", "such as https://chat.example"],
    ),
    "a host with a port": (
        change("port = 8000", 'port = 8000\nallowed_hosts = ["gpu1:8000"]'),
        ["router.allowed_hosts[0] = 'gpu1:8000'", "without a port"],
    ),
    "a router off loopback without keys": (
        change("port = 8000", 'port = 8000\nhost = "0.0.0.0"'),
        ["router.host = '0.0.0.0'", "[[router.tenants]]"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_file_key_value_and_what_would_be_right(case, tmp_path):
    text, words = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, text)
    message = str(refusal.value)
    assert str(tmp_path / "test.toml") in message
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_a_missing_file_is_refused_with_the_packaged_names(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"nothing\.toml: No such file.*default, mixed, mixed-tiny, scripted, tiny, vllm, vllm-tiny, wide",
    ):
        load_topology(str(tmp_path / "nothing.toml"))


def test_a_folder_or_binary_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory"):
        load_topology(str(tmp_path))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_topology(str(tmp_path / "binary.toml"))


def test_plaintext_off_loopback_is_allowed_when_said(tmp_path):
    text = change('arena = "8 MiB"', 'arena = "8 MiB"\nhost = "10.0.0.1"')
    assert load(tmp_path, text, exposure=Exposure.INSECURE_PLAINTEXT).nodes[0].host == "10.0.0.1"


def test_roles_on_two_machines_may_have_the_same_port(tmp_path):
    text = change('arena = "8 MiB"', 'arena = "8 MiB"\nhost = "10.0.0.1"\nport = 8000')
    assert load(tmp_path, text, exposure=Exposure.INSECURE_PLAINTEXT).router.port == 8000


def test_a_router_off_loopback_is_allowed_with_keys(tmp_path):
    keys = '\n[[router.tenants]]\nname = "t"\napi_key = "a-long-enough-secret-key"\n'
    text = change("port = 8000", 'port = 8000\nhost = "0.0.0.0"') + keys
    assert load(tmp_path, text).router.tenants[0].name == "t"


def test_parsing_alone_checks_keys_and_types_only():
    topology, _ = parse_topology(change('"tiny-random"', '"gpt-9"'), "x.toml")
    assert topology.model == "gpt-9"


MODELLED = (
    GOOD.replace('role = "', 'kind = "modelled"\nhardware = "H200-SXM"\nrole = "')
    .replace('"tiny-random"', '"Qwen3-32B"')
    .replace('arena = "8 MiB"', 'arena = "4 TiB"')
    .replace("arena_bytes = 8388608", "arena_bytes = 4398046511104")
)


def load_simulated(tmp_path, text):
    file = tmp_path / "test.toml"
    file.write_text(text)
    return load_simulated_topology(str(file))


def test_a_simulation_may_have_modelled_engines_huge_arenas_and_any_model_of_which_there_is_a_profile(tmp_path):
    topology = load_simulated(tmp_path, MODELLED)
    assert (topology.model, topology.nodes[0].arena_bytes) == ("Qwen3-32B", 4 * 2**40)
    assert topology.engines[0].hardware == "H200-SXM"


def test_a_simulation_may_do_without_relay_decode(tmp_path):
    same_datacenter = MODELLED.replace('role = "relay_decode"', 'role = "prefill"')
    assert load_simulated(tmp_path, same_datacenter).engines_of(Role.RELAY_DECODE) == ()


@pytest.mark.parametrize("name", simulated_topologies())
def test_packaged_topologies_can_be_simulated_and_are_named_after_their_file(name):
    assert load_simulated_topology(name).name == name


def test_a_packaged_topology_of_real_engines_is_answered_with_those_that_can_be_simulated():
    with pytest.raises(ConfigError, match=r"packaged topology: .*crossing"):
        load_simulated_topology("scripted")


REFUSED_SIMULATIONS = {
    "a real engine": (GOOD, ["engines[0].kind = 'embedded'", 'kind = "modelled"']),
    "modelled without hardware": (
        MODELLED.replace('hardware = "H200-SXM"\n', "", 1),
        ["engines[0].hardware", "needs a hardware profile"],
    ),
    "two kinds at once": (
        MODELLED.replace('kind = "modelled"\nhardware = "H200-SXM"', 'kind = "scripted"', 1),
        ["engines[0].kind = 'scripted'", 'kind = "modelled"'],
    ),
    "no main decode": (MODELLED.replace("main_decode", "prefill"), ["engines", "main_decode"]),
    "blocks of two lengths": (
        MODELLED.replace("arena_bytes = 4398046511104", "arena_bytes = 4398046511104\nblock_tokens = 32"),
        ["nodes[1].block_tokens = 32", "must agree"],
    ),
    "a cache smaller than one request": (
        MODELLED.replace('role = "prefill"', 'role = "prefill"\ncache_tokens = 512'),
        ["engines[0].cache_tokens = 512"],
    ),
    "an arena smaller than one request": (
        MODELLED.replace('arena = "4 TiB"', 'arena = "1 MiB"', 1),
        ["nodes[0].arena = '1 MiB'", "one request of max_model_tokens = 1024 needs", "this model's KV"],
    ),
    "a model of which there is no profile": (
        MODELLED.replace('"Qwen3-32B"', '"some-flagship"'),
        ["model = 'some-flagship'", "packaged models:"],
    ),
    "a range that is wrong anywhere": (MODELLED + "[router.health]\nchecks_to_up = 0\n", ["checks_to_up = 0"]),
}


@pytest.mark.parametrize("case", REFUSED_SIMULATIONS)
def test_a_refused_simulation_names_the_key(case, tmp_path):
    text, words = REFUSED_SIMULATIONS[case]
    with pytest.raises(ConfigError) as refusal:
        load_simulated(tmp_path, text)
    for word in words:
        assert word in str(refusal.value), str(refusal.value)


def vllm_topology(tmp_path, model, *extra):
    """The good topology with vLLM engines and another model, in a file."""
    text = GOOD.replace('model = "tiny-random"', "\n".join([f'model = "{model}"', *extra]))
    text = text.replace('node = "node-', 'kind = "vllm"\nnode = "node-').replace('token_interval = "5 ms"\n', "")
    path = tmp_path / "topology.toml"
    path.write_text(text)
    return str(path)


def test_a_models_folder_is_found_from_where_the_topology_file_is(tmp_path):
    folder = tiny_folder(tmp_path)
    topology = load_topology(vllm_topology(tmp_path, "./Tiny"))
    assert topology.model == str(folder)
    assert topology.served_model_name == model_of(topology).name == "Tiny"


def test_the_operator_names_a_model_and_what_its_kv_is_kept_in(tmp_path):
    tiny_folder(tmp_path)
    file = vllm_topology(tmp_path, "./Tiny", 'model_name = "my/model"', 'kv_dtype = "bfloat16"')
    model = model_of(load_topology(file))
    assert model.name == "my/model"
    assert model.kv_format(16).bytes_per_token == 2 * 2 * 2 * 32 * 2


@pytest.mark.parametrize(
    ("model", "extra", "words"),
    [
        ("./Nowhere", (), ["model = ", "Nowhere", "no such folder"]),
        ("tiny-random-32", ('kv_dtype = "int4"',), ["kv_dtype = 'int4'"]),
        ("scripted", (), ["engines[0].kind = 'vllm'", "no weights"]),
        ("scripted", ('kv_dtype = "float16"',), ["model = 'scripted'", "kv_dtype is 'float16'"]),
    ],
)
def test_a_model_that_vllm_cannot_be_given_is_refused(tmp_path, model, extra, words):
    with pytest.raises(ConfigError) as refused:
        load_topology(vllm_topology(tmp_path, model, *extra))
    assert all(word in str(refused.value) for word in words)


def test_embedded_engines_refuse_a_folder_and_a_shorter_type(tmp_path):
    tiny_folder(tmp_path)
    path = tmp_path / "topology.toml"
    path.write_text(GOOD.replace('"tiny-random"', '"./Tiny"'))
    with pytest.raises(ConfigError, match=r"engines\[0\].kind = 'embedded'.*needs kind = \"vllm\""):
        load_topology(str(path))
    path.write_text(GOOD.replace('"tiny-random"', '"tiny-random"\nkv_dtype = "float16"'))
    with pytest.raises(ConfigError, match="embedded engine keeps K and V in float32"):
        load_topology(str(path))
