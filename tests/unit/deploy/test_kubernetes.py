"""The manifests are what Kubernetes takes, field by field, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from .test_deploy import DEPLOY, options_of

MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
Schema = dict[str, Any]
WORD = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
PORT_NAME = {"type": "string", "pattern": r"^[a-z0-9-]{1,15}$"}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$"}


def strict(required: str = "", **properties: Schema) -> Schema:
    """An object with these fields and no others: a field that is misspelt is silently dropped by a server."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


METADATA = strict("name", name=WORD, labels=WORDS, annotations=WORDS)
QUANTITIES = {
    "type": "object",
    "propertyNames": {"enum": ["cpu", "memory", "storage"]},
    "additionalProperties": QUANTITY,
}
RESOURCES = strict(requests=QUANTITIES, limits=QUANTITIES)
PROBE = strict(
    "httpGet",
    httpGet=strict("path port", path={"type": "string", "pattern": "^/"}, port=PORT_NAME),
    initialDelaySeconds=COUNT,
    periodSeconds={"type": "integer", "minimum": 1},
)
CONTAINER = strict(
    "name image resources securityContext",
    name=WORD,
    image={"type": "string", "pattern": r"^[a-z0-9./-]+:[\w.-]+$"},
    args=many({"type": "string"}),
    env=many(
        strict(
            "name",
            name={"type": "string", "pattern": "^[A-Z_]+$"},
            value={"type": "string"},
            valueFrom=strict("secretKeyRef", secretKeyRef=strict("name key", name=WORD, key=WORD)),
        )
    ),
    ports=many(strict("name containerPort", name=PORT_NAME, containerPort=PORT)),
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=RESOURCES,
    securityContext=strict(
        "allowPrivilegeEscalation capabilities",
        allowPrivilegeEscalation={"const": False},
        capabilities=strict("drop", drop={"const": ["ALL"]}),
    ),
    volumeMounts=many(strict("name mountPath", name=WORD, mountPath={"type": "string", "pattern": "^/"})),
)
POD = strict(
    "containers securityContext",
    securityContext=strict(
        "runAsNonRoot runAsUser",
        runAsNonRoot={"const": True},
        runAsUser={"type": "integer", "minimum": 1000},
        fsGroup=COUNT,
    ),
    terminationGracePeriodSeconds=COUNT,
    containers=many(CONTAINER),
    volumes=many(
        strict(
            "name", name=WORD, emptyDir=strict(), persistentVolumeClaim=strict("claimName", claimName=WORD)
        )
    ),
)
KINDS: dict[tuple[str, str], Schema] = {
    ("v1", "PersistentVolumeClaim"): strict(
        "accessModes resources",
        accessModes=many({"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"]}),
        resources=RESOURCES,
    ),
    ("v1", "Service"): strict(
        "selector ports",
        selector=WORDS,
        ports=many(strict("name port", name=PORT_NAME, port=PORT, targetPort=PORT_NAME)),
    ),
    ("apps/v1", "Deployment"): strict(
        "replicas selector template",
        replicas=COUNT,
        strategy=strict("type", type={"enum": ["Recreate", "RollingUpdate"]}),
        selector=strict("matchLabels", matchLabels=WORDS),
        template=strict("metadata spec", metadata=strict("labels", labels=WORDS, annotations=WORDS), spec=POD),
    ),
}  # fmt: skip


def parts(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def all_parts(kind: str) -> list[dict[str, Any]]:
    return [part for path in MANIFESTS for part in parts(path) if part["kind"] == kind]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_has_known_fields_only(path: Path) -> None:
    for part in parts(path):
        spec = KINDS[part["apiVersion"], part["kind"]]
        whole = strict("apiVersion kind metadata spec", apiVersion={}, kind={}, metadata=METADATA, spec=spec)
        jsonschema.validate(part, whole, cls=jsonschema.Draft202012Validator)


def test_a_misspelt_field_is_found() -> None:
    part = all_parts("Deployment")[0]
    part["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(jsonschema.ValidationError, match="readynessProbe"):
        jsonschema.validate(part["spec"], KINDS["apps/v1", "Deployment"])


@pytest.mark.parametrize("part", all_parts("Deployment"), ids=lambda part: str(part["metadata"]["name"]))
def test_a_deployment_holds_together(part: dict[str, Any]) -> None:
    template = part["spec"]["template"]
    assert part["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    claims = {claim["metadata"]["name"] for claim in all_parts("PersistentVolumeClaim")}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for volume in volumes.values():
        assert "emptyDir" in volume or volume["persistentVolumeClaim"]["claimName"] in claims
    for container in pod["containers"]:
        ports = {port["name"] for port in container["ports"]}
        probes = [container[name] for name in ("readinessProbe", "livenessProbe") if name in container]
        assert {probe["httpGet"]["port"] for probe in probes} <= ports
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        command = {"coordinator": "serve", "node": "join"}[container["name"]]
        assert {word for word in container["args"] if word.startswith("--")} <= options_of(command)
        known = {variable["name"] for variable in container.get("env", [])}
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= known
        assert any(file.stem.startswith(container["name"]) for file in (DEPLOY / "docker").iterdir())


def test_services_lead_to_pods() -> None:
    pods = [part["spec"]["template"] for part in all_parts("Deployment")]
    for service in all_parts("Service"):
        chosen = [p for p in pods if service["spec"]["selector"].items() <= p["metadata"]["labels"].items()]
        assert len(chosen) == 1
        ports = {port["name"] for one in chosen[0]["spec"]["containers"] for port in one["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
