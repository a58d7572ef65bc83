"""wheel_tests.py: tests for the pytest plugin on a real GPU; two of them must fail (tests/gpu/wheel.py)."""
import pytest
import torch

MIB = 1 << 20
kept = []


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


@pytest.mark.vram_limit("2GiB")
def test_fits():
    take(512)


@pytest.mark.vram_limit("64MiB")
def test_takes_more_than_its_limit():
    take(512)


@pytest.mark.vram_no_leaks
def test_leaks():
    kept.append(take(64))


@pytest.mark.vram_no_leaks
def test_is_clean():
    take(64)
