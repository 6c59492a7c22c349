"""The chart: what it renders for many values is what Kubernetes takes, and values that cannot be are refused.

Built-in objects are validated strictly against the schemas of three versions of Kubernetes, and those of the Prometheus
operator and of cert-manager by decoding them strictly into their Go types. HELM and STRICT name the programs.
CHART=all renders every combination of values, which takes a minute.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

CHART = Path(__file__).resolve().parent / "farpool"
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HELM, STRICT = os.environ["HELM"], os.environ["STRICT"]
VERSIONS = ("1.32", "1.35", "1.37")
KUBERNETES = "1.35.0"  # The version for which most tests render. Pods know their zone from it on.
CUSTOM = ("monitoring.coreos.com/", "cert-manager.io/")

STORES = {
    "volume": {},
    "etcd": {
        "broker": {
            "replicas": 3,
            "quotas": {"default": "4Gi", "other": "1TiB"},
            "defaultQuota": "1Gi",
            "store": {
                "kind": "etcd",
                "etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"], "secret": "etcd"},
            },
        },
    },
}
TLS = {
    "helm": {},
    "certManager": {"tls": {"source": "certManager"}},
    "issuer": {"tls": {"source": "certManager", "certManager": {"issuer": "corporate", "issuerKind": "ClusterIssuer"}}},
    "secrets": {"tls": {"source": "secrets"}},
    "none": {"tls": {"source": "none", "allowPlaintext": True}},
}
NODES = {
    "set": {},
    "zone": {"nodes": {"failureDomain": "zone", "functions": True, "memory": "5GiB", "sharedMemory": True}},
    "daemon": {"nodes": {"kind": "DaemonSet", "machines": ["m1", "m2"], "nodeSelector": {"farpool.io/donor": "true"}}},
}
EXTRAS = {
    "plain": {},
    "all": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "image": {"repository": "registry.example/farpool", "pullSecrets": ["pull"]},
        "tenants": ["default", "analytics"],
        "networkPolicy": {"clientNamespaces": [{"kubernetes.io/metadata.name": "jobs"}]},
        "metricsSecret": "metrics-of-ours",
        "csi": {"tenant": "analytics", "storageClasses": [{"name": "far", "protection": "local", "encrypted": True}]},
    },
    "bare": {
        "csi": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
}
MATRIX = list(itertools.product(STORES, TLS, NODES, EXTRAS))
if os.environ.get("CHART") != "all":
    # Each value once, beside others each time: every value is rendered, but not with every other one.
    columns = [list(values) for values in (STORES, TLS, NODES, EXTRAS)]
    MATRIX = [tuple(column[row % len(column)] for column in columns) for row in range(max(map(len, columns)))]


def merged(*layers: dict) -> dict:
    result: dict = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def helm(
    *arguments: object, values: dict, folder: Path, kubernetes: str = KUBERNETES
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [HELM, *map(str, arguments), str(CHART), "--values", str(file), "--kube-version", kubernetes]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def rendered(values: dict, folder: Path) -> list[dict]:
    done = helm("template", "far", "--namespace", "pools", values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def validated(document: dict) -> str | None:
    """Returns what is wrong with an object. None if Kubernetes takes it."""
    if document["apiVersion"].startswith(CUSTOM):
        done = subprocess.run([STRICT], input=yaml.safe_dump(document), capture_output=True, text=True, timeout=60)
        return None if done.returncode == 0 else done.stderr
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"Kubernetes {version}: {error.message} at {list(error.path)}"
    return None


def check(documents: list[dict]) -> None:
    wrong = {f"{one['kind']} {one['metadata']['name']}": validated(one) for one in documents}
    assert not {what: why for what, why in wrong.items() if why}


def test_field_that_kubernetes_does_not_know_is_found(tmp_path):
    found = set()
    for document in rendered(merged(TLS["certManager"], EXTRAS["all"]), tmp_path):
        if "spec" in document and document["kind"] != "CSIDriver":
            found.add(document["kind"])
            document["spec"]["replicaz"] = 1
            assert "replicaz" in (validated(document) or "nothing is wrong"), document["kind"]
    assert {"StatefulSet", "DaemonSet", "PodMonitor", "Certificate", "Issuer", "NetworkPolicy"} <= found


@pytest.mark.parametrize("choice", MATRIX, ids="-".join)
def test_what_the_chart_renders_is_what_kubernetes_takes(choice, tmp_path):
    store, tls, nodes, extras = choice
    values = merged(STORES[store], TLS[tls], NODES[nodes], EXTRAS[extras])
    documents = rendered(values, tmp_path)
    check(documents)
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names), "two objects of one name"
    for name, pod, _ in containers(documents):
        for volume in pod["volumes"]:
            sources = volume.get("projected", {}).get("sources", [])
            paths = [item["path"] for source in sources for item in source["secret"].get("items", [])]
            assert len(set(paths)) == len(paths), f"{name}: two files of one name in volume {volume['name']}"


@pytest.mark.parametrize("values", [{}, EXTRAS["all"], merged(STORES["etcd"], TLS["certManager"])])
def test_helm_lint_finds_nothing(values, tmp_path):
    done = helm("lint", "--strict", values=values, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls": {"source": "none"}}, "tls.allowPlaintext=true"),
        ({"broker": {"replicas": 3}}, "broker.store.kind=etcd"),
        ({"broker": {"store": {"kind": "etcd"}}}, "broker.store.etcd.endpoints"),
        ({"nodes": {"kind": "DaemonSet"}}, "nodes.machines"),
        ({"csi": {"tenant": "nobody"}}, "not in tenants"),
        ({"nodes": {"replicas": 251}}, "tls.source=certManager"),
        ({"nodes": {"memroy": "65%"}}, "memroy"),
        ({"nodes": {"memory": "0%"}}, "nodes/memory"),
        ({"nodes": {"memory": "96%"}}, "nodes/memory"),
        ({"nodes": {"regionSize": "3MiB"}}, "nodes/regionSize"),
        ({"nodes": {"updateStrategy": "Recreate"}}, "updateStrategy"),
        ({"nodes": {"memoryLimit": "8G"}}, "memoryLimit"),
        ({"nodes": {"replicas": 0}}, "replicas"),
        ({"tenants": ["Not A Name"]}, "tenants"),
        ({"tenants": ["ends-with-"]}, "tenants"),
        ({"csi": {"defaultSize": "4Ki"}}, "defaultSize"),
        ({"csi": {"storageClasses": [{"name": "far", "protection": "raid"}]}}, "protection"),
        ({"csi": {"storageClasses": [{"name": "far", "protection": "none", "transport": "rdma"}]}}, "transport"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values, said, tmp_path):
    done = helm("template", "far", values=values, folder=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr


def test_zones_and_long_names_that_kubernetes_does_not_offer_are_refused(tmp_path):
    done = helm("template", "far", values=NODES["zone"], folder=tmp_path, kubernetes="1.34.0")
    assert done.returncode != 0 and "nodes.failureDomain=host" in done.stderr, done.stderr
    done = helm("template", "far" * 12, values={}, folder=tmp_path)
    assert done.returncode != 0 and "Choose a shorter name" in done.stderr, done.stderr


def test_nodes_run_only_on_machines_that_have_certificates(tmp_path):
    documents = rendered(NODES["daemon"], tmp_path)
    (node,) = [one for one in documents if one["metadata"]["name"] == "far-farpool-node" and one["kind"] == "DaemonSet"]
    affinity = node["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    machines = [field["values"] for term in terms for field in term["matchFields"]]
    assert machines == [["m1"], ["m2"]]
    assert not [one for one in documents if one["kind"] == "PodDisruptionBudget" and "node" in one["metadata"]["name"]]


def containers(documents: list[dict]) -> list[tuple[str, dict, dict]]:
    found = []
    for document in documents:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        found += [(document["metadata"]["name"], pod, one) for one in pod.get("containers", [])]
    return found


def test_only_the_volume_server_has_privileges(tmp_path):
    for name, pod, container in containers(rendered(EXTRAS["all"], tmp_path)):
        context = container["securityContext"]
        if name == "far-farpool-volume-server":
            assert context["privileged"] and not pod["automountServiceAccountToken"]
            continue
        assert not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"], name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert not context.get("privileged"), name


def test_each_identity_is_in_the_secrets_of_those_who_need_it_alone(tmp_path):
    documents = rendered({"tenants": ["default", "other"]}, tmp_path)
    secrets = {one["metadata"]["name"]: set(one["data"]) for one in documents if one["kind"] == "Secret"}
    assert "ca.key" in secrets["far-farpool-ca"]
    assert all("ca.key" not in names for secret, names in secrets.items() if secret != "far-farpool-ca")
    used = {}
    for name, pod, _ in containers(documents):
        sources = [
            source["secret"]["name"]
            for volume in pod["volumes"]
            if volume["name"] == "certs"
            for source in volume["projected"]["sources"]
        ]
        used[name] = sources
    assert used == {
        "far-farpool-broker": ["far-farpool-broker"],
        "far-farpool-node": ["far-farpool-nodes"],
        "far-farpool-csi": ["far-farpool-tenant-default"],
        "far-farpool-volume-server": ["far-farpool-tenant-default"],
    }


def test_certificates_of_the_chart_are_taken_by_the_programs(tmp_path):
    """The chart computes the identities of nodes by itself, so a node and a broker start with what it has made."""
    import base64

    documents = rendered({}, tmp_path)
    certs = tmp_path / "certs"
    certs.mkdir()
    for document in documents:
        if document["kind"] == "Secret":
            for name, content in document["data"].items():
                if name.endswith((".pem", ".key")):
                    (certs / name).write_bytes(base64.b64decode(content))
                    (certs / name).chmod(0o600)
    program = os.environ["FARPOOL_BIN"]
    flags = ["--certs", str(certs)]
    broker = subprocess.Popen([program, "broker", "--listen", "127.0.0.1:0", *flags], stdout=subprocess.PIPE, text=True)
    try:
        url = broker.stdout.readline().split()[1]
        sizes = ["--memory", "16MiB", "--region-size", "1MiB", "--no-reserve", "--broker", url]
        node = [program, "node", "--name", "far-farpool-node-2", *sizes, *flags]
        node = subprocess.Popen(node, stdout=subprocess.PIPE, text=True)
        try:
            assert node.stdout.readline().startswith("ready far-farpool-node-2 ")
            status = [program, "status", "--pool", url, *flags, "--tenant", "default"]
            assert "far-farpool-node-2" in subprocess.run(status, check=True, capture_output=True, text=True).stdout
        finally:
            node.kill()
            node.wait()
    finally:
        broker.kill()
        broker.wait()


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_what_kubernetes_and_compose_take(example):
    documents = [one for one in yaml.safe_load_all(example.read_text()) if one]
    if example.name == "compose.yaml":
        services = documents[0]["services"]
        assert {"broker", "node-1", "node-2", "job"} == set(services)
        for service in services.values():
            check_flags(service["command"], service["environment"])
        return
    check(documents)


def check_flags(command: list[str], environment: dict[str, str]) -> None:
    """Checks that the command has these flags, and settings of these names."""
    said = subprocess.run([os.environ["FARPOOL_BIN"], command[0], "--help"], check=True, capture_output=True, text=True)
    known = set(re.findall(r"--[a-z-]+", said.stdout))
    prefix = f"FARPOOL_{command[0].upper()}_"
    flags = {word for word in command if word.startswith("--")}
    for name in environment:
        flags.add("--" + name.removeprefix(prefix).removeprefix("FARPOOL_").lower().replace("_", "-"))
    assert not flags - known, f"{command[0]} has no {flags - known}"


def test_spark_gets_volumes_that_end_with_their_executor():
    lines = (EXAMPLES / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1"
    assert settings[f"{volume}.options.claimName"] == "OnDemand"
    classes = yaml.safe_load((CHART / "values.yaml").read_text())["csi"]["storageClasses"]
    assert settings[f"{volume}.options.storageClass"] in [one["name"] for one in classes]
    assert settings["spark.kubernetes.driver.reusePersistentVolumeClaim"] == "false"
