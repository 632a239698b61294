"""Programs that the fuzzer has found, in their shortest form; and, slow, as many random ones."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.programs import Epoch, Program, program
from tests.fuzz.running import check

TWICE = (Epoch(), Epoch(pause=True))
SET = (Epoch(before=1, pause=True), Epoch(before=2, pause=True), Epoch(before=3, pause=True))

FOUND = {
    "value set before each epoch": Program("SharedValue", workers=2, persistent=True, epochs=SET),
    "value set before each epoch, new workers": Program("SharedValue", workers=2, epochs=SET),
    "value set before each epoch, no workers": Program("SharedValue", epochs=SET),
    "tensor set before each epoch": Program("SharedTensor", workers=1, persistent=True, epochs=SET),
    "array over shared memory": Program("SharedArray", workers=2, persistent=True, epochs=SET),
    "loader made again": Program("SharedValue", workers=2, how="again", epochs=SET),
    "file replaced before each epoch": Program("SmallFile", workers=2, persistent=True, epochs=SET),
    "index file written before each epoch": Program("IndexFile", workers=2, persistent=True, epochs=SET),
    "mapped file written before each epoch": Program("MappedFile", workers=2, persistent=True, epochs=SET),
    "environment": Program("Environment", workers=2, epochs=SET),
    "environment by a hidden name": Program("HiddenEnvironment", workers=2, epochs=SET),
    "iterable dataset told before each epoch": Program("SharedValueStream", workers=2, persistent=True, epochs=SET),
    "iterable dataset with a file": Program("FileStream", workers=2, epochs=SET),
    "iterable dataset whose file was gone": Program("FileStream", epochs=(Epoch(),)),
    "iterable dataset that counts its passes": Program("PassesStream"),
    "iterable dataset that counts, persistent": Program("PassesStream", workers=2, persistent=True),
    "collate function that counts, iterable": Program("AttributeStream", collate="collator", epochs=(Epoch(),)),
    "file with several workers": Program("Rows", workers=3),
    "file without workers": Program("Rows"),
    "archive": Program("TarRows"),
    "attribute set within an epoch": Program("Attribute", epochs=(Epoch(within=1), Epoch(at=2))),
    "value set within an epoch": Program("SharedValue", epochs=(Epoch(within=1),)),
    "array written within an epoch": Program("Array", epochs=(Epoch(within=1),)),
    "list that samples write": Program("Seen"),
    "counter": Program("Counter"),
    "counter in a global": Program("GlobalCounter"),
    "counter in a class": Program("ClassCounter"),
    "shared counter": Program("SharedCounter"),
    "counter with workers": Program("Counter", workers=2),
    "counter with persistent workers": Program("Counter", workers=2, persistent=True),
    "counter with persistent workers, epoch left": Program(
        "GlobalCounter", workers=1, persistent=True, prefetch=1, epochs=(Epoch(raises=True), Epoch())
    ),
    "counter with two persistent workers, epoch left": Program(
        "ClassCounter", workers=2, persistent=True, batch_size=1, epochs=(Epoch(raises=True), Epoch())
    ),
    "counter, two loaders with one generator": Program(
        workers=2, persistent=True, order="generator", collate="collator", how="second"
    ),
    "cache with a generator, epoch left": Program(
        "PlainCache",
        workers=1,
        persistent=True,
        order="generator",
        collate="collator",
        epochs=(Epoch(raises=True), Epoch()),
    ),
    "cache that is returned": Program("Cache"),
    "quasi-random engine": Program("Sobol", workers=3, init=True),
    "collate function that counts": Program("HeldDraws", workers=1, collate="collator", epochs=(Epoch(),)),
    "collate function that counts, persistent": Program("Rows", workers=3, persistent=True, collate="collator"),
    "sampler that counts, loader made again": Program(order="batch_sampler", how="again"),
    "sampler that counts, second loader": Program(order="sampler", how="second", workers=2),
    "sampler that counts, resumed": Program(order="batch_sampler", how="resumed", epochs=(Epoch(),)),
    "generator, made in the trainer, resumed": Program(
        order="generator", collate="collator", how="resumed", epochs=(Epoch(),)
    ),
}


@pytest.mark.usefixtures("fuzzed_daemon")
@pytest.mark.parametrize("what", FOUND.values(), ids=FOUND)
def test_program_has_dataloaders_samples(what):
    check(what)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("fuzzed_daemon")
def test_random_programs_have_dataloaders_samples():
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        # The same programs each time: `make fuzz` makes others.
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data):
        check(program(lambda name, options: data.draw(st.sampled_from(options), label=name)))

    run()
