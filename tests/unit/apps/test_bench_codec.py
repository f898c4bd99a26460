"""That the benchmark works; how fast codecs are, is its business."""

import json

import torch
from typer.testing import CliRunner

from shoal.apps.bench import app
from shoal.apps.bench.coding import WITH_FEEDBACK
from shoal.codec import CODECS


def test_every_codec_is_measured_against_a_copy() -> None:
    threads = torch.get_num_threads()
    try:
        shown = CliRunner().invoke(app, ["codec", "--params", "5000", "--json"])
    finally:
        torch.set_num_threads(threads)
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout.splitlines()[-1])
    assert set(CODECS) | {f"{kind}+feedback" for kind in WITH_FEEDBACK} == set(result["codecs"])
    for row in result["codecs"].values():
        assert row["encode_ratio"] >= 0 and row["decode_gb_s"] > 0
    assert 2.0 < result["codecs"]["two-bit"]["bits_per_param"] < 2.05
    assert result["kernels"] == "none for this device"
    assert result["copy_gb_s"] > 0 and "torchao int8" in result["others"]


def test_people_get_a_table() -> None:
    threads = torch.get_num_threads()
    try:
        shown = CliRunner().invoke(app, ["codec", "--params", "1000"])
    finally:
        torch.set_num_threads(threads)
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and any(line.startswith("powersgd ") and "%" in line for line in lines)


def test_a_device_that_is_not_there_is_refused() -> None:
    shown = CliRunner().invoke(app, ["codec", "--params", "1000", "--device", "nonsense"])
    assert shown.exit_code == 1 and "SH-DEVICE-01" in str(shown.exception)
