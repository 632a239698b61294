"""One fixed value of every format: what the golden files hold, and a first example for other tests.

Every field has a value of its own that is not its default, so that two fields that change places show.
"""

from __future__ import annotations

from prefetchd.wire import messages as m
from prefetchd.wire.program_layout import Environment, ProgramLayout, encode_environment
from prefetchd.wire.remote_exception import RemoteException
from prefetchd.wire.segment_layout import (
    SLOT_CONTINUED,
    SLOT_EMPTY,
    SLOT_FILLING,
    SLOT_READY,
    ConsumerRecord,
    SegmentHeader,
    SlotRecord,
)
from prefetchd.wire.slot_layout import BUFFER, DTYPES, TENSOR, PayloadMeta, RowLayout, ViewEntry, layout_payload
from prefetchd.wire.stream_spec import StreamSpec

FINGERPRINT = "0123456789abcdef0123456789abcdef"

MESSAGES: tuple[m.Message, ...] = (
    m.Hello(
        protocol=1,
        role="trainer",
        software="prefetchd 0.1",
        pid=4321,
        stream="train.py:0:0",
        fingerprint=FINGERPRINT,
        spec=b"\x81\xa4seed\x07",
        shared=True,
        cursors=((1, 2, 3, 0), (4, 3, 0, 1)),
        held=((1, 0, 17), (1, 5, 18)),
        fresh=True,
        consumer=3,
        ring=1_700_000_000_000_000_001,
        forks=True,
        ahead=m.HELD,
        why="run_ahead=False",
    ),
    m.Welcome(
        protocol=1,
        software="prefetchd 0.2",
        pid=99,
        generation=6,
        stream="train",
        consumer=3,
        program_wanted=True,
        supervised=True,
        spec=b"\x80",
        config=b"/home/a/streams.toml",
        is_new=True,
        workers=16,
        managed=True,
    ),
    m.Refused(code="buffer_too_small", message="the ring would hold 2 batches; allowed: 4 or more. Raise buffer="),
    m.Program(name="/prefetchd-0a1b2c3d-program-1", program_bytes=1 << 33),
    m.PlaceCursor(
        cursor=7, epoch=2, step=300, waiting=True, ahead=m.LIVE, why="dataset.epoch is a shared value", anew=True
    ),
    m.CloseCursor(cursor=8),
    m.Consumed(cursor=-1, step=70_000, released=(7, 2, 19, 8, 3, 1 << 40), waited_us=151),
    m.GiveBack(cursor=7, step=302),
    m.Waiting(cursor=3, why=True),
    m.Goodbye(),
    m.RingOpened(segment_bytes=1 << 32),
    m.Published(
        batches=((7, 2, 300, 0, 4, 20, 5, 21), (8, 0, 0, 1, 6, 22)), ends=((7, 2, 302),), voids=((9, 2, 3, 5),)
    ),
    m.BatchFailed(cursor=7, epoch=2, step=301, error=b"\x95\xa0"),
    m.StreamFailed(code="stream_failed", message="the program does not load", error=b"\x00\xff"),
    m.Output(worker=2, text="Läuft…\n", dropped=12, topic="executed workers"),
    m.Farewell(reason="asked to stop"),
    m.BadSamplesNamed(samples=((2, 300, 1, 4),), texts=("dätaset[12] is left out".encode(),), before=True),
    m.Recall(cursor=7, step=299),
    m.Assume(epoch=3, sampler_epoch=5, states=(b"\x01\x02", b"\x03"), attributes=b"\x90"),
    m.ShardStart(epoch=2, shard=1, following=300, state=b"\x80\x05"),
    m.EpochStates(cursor=7, epoch=2, stage=1, sampler_epoch=4, states=(b"\x01",), attributes=b"\x90"),
    m.Enclosed(packet_bytes=100_000),
    m.AskPlan(epoch=2, first_step=64, steps=64, stage=2),
    m.Rebase(epoch=3, sampler_epoch=5, states=(b"\x01\x02",), attributes=b"\x90"),
    m.Begun(epoch=2, stage=0, sampler_epoch=-1, states=(b"\x01",), attributes=b"\x90"),
    m.Planned(epoch=2, first_step=64, samples=(4, 3), keys=(b"\x00", b"\x01"), steps=66),
    m.PlanFailed(epoch=2, step=66, error=b"\x95"),
    m.WaitNamed(cursor=7, epoch=2, step=301, text="worker 3 is at dataset[17]\nin größe"),
    m.Stop(now=True, keep=True),
    m.Pause("train.py:0", drain=True),
    m.Resume("train.py:0"),
    m.Evict("train.py:0", force=True),
    m.SetLogLevel("debug"),
    m.Reload(config=b"/etc/streams.toml", replace=True),
    m.Reloaded(config=b"/etc/streams.toml", streams=(b"a", b"b"), begun=(b"b",), ended=(b"c",), later=(b"workers",)),
    m.Trace(10_000),
    m.TraceEvents(
        ((0, 1, 2, 0, 7, 0, 16, 1, 1_000_000, 2_500), (1, 1, 4711, 0, 7, 0, 0, 0, 900_000, 10)),
        (1,),
        (b"s",),
        3,
        ((950_000, 1, 2, 8),),
        (b"samples wait", b"it was empty"),
        ((960_000, 1, 30, 60),),
    ),
    m.Done((b"train.py:0", b"eval")),
    m.SpawnStream(host=3, program_bytes=4096, spec=b"\x80"),
    m.SpawnWorker(worker=11, worker_index=2, workers=4),
    m.Deciding(takes_fingerprint=True),
    m.Introduce(),
    m.Forked(pid=4711),
    m.ForkWanted(),
    m.UseNote(),
    m.TellFingerprint(),
    m.WriteProgram(limit_bytes=1 << 26),
    m.Unpicklable(reason="dataset.lock cannot be handed to the workers"),
    m.TooLarge(buffer_bytes=1 << 31),
    m.Spare(pid=4712),
    m.Identified(fingerprint="0123456789abcdef" * 2, found=b"\x93\x80"),
    m.Serve(),
    m.Spent(task=77, reason="a sample is left out"),
    m.Spawned(child=11, pid=31337),
    m.Ready(note="importing foo started a thread"),
    m.LoadFailed(message="No module named 'foo'", error=b"\x01"),
    m.ChildEnded(child=11, status=9),
    m.NotSpawned(child=11, reason="Resource temporarily unavailable"),
    m.UseRing(layout=b"\x94"),
    m.UseSamples(),
    m.Fill(tasks=((1, m.FILL_ROWS, 2, 300, 0, 128, 4), (2, m.FILL_WHOLE, 2, 301, 0, 256, 5)), keys=(b"", b"\x05")),
    m.Filled(tasks=((1, 65_536, 1500, 128),), sample_times=(1400, 0, 120, 3, 8), opened=(b"\x90",)),
    m.Measured(task=1, payload_bytes=65_536, layout=b"\x94\x01", one_by_one=True, wrote="dataset.count", varies=True),
    m.Helped(task=2, samples=5, of_use=False, duration_us=120_000, opened=b"\x90"),
    m.SamplesWrote(what="dataset.seen"),
    m.FilesChecked(task=2, unchanged=False, path="/data/7.jpg", duration_us=90),
    m.Unfit(task=2, payload_bytes=0, reason="row 3: dtype float64, not float32"),
    m.FillFailed(task=2, error=b"\x95"),
    m.BadSamples(task=2, samples=((3, 0, 77), (3, 1, 12)), texts=(b"dataset[77] gives way", "dätaset[12]".encode())),
    m.Digested(task=9, digest=0xFEDCBA9876543210, duration_us=20_000),
    m.StoreFailed(task=9, reason="/mnt/ram: No space left on device", is_full=True),
    m.ShardEnded(task=9, batches=17),
    m.ShardBegun(task=9),
    m.ShardCame(epoch=2, shard=1, following=301, state=b"\x80\x05"),
    m.Compared(task=9, is_equal=False, duration_us=30_000, row=3),
    m.OpenBridge(spec=b"\x80", address="10.0.0.1:6379", insecure=True),
    m.StartRemote(workers=(21, 22)),
    m.StopRemote(worker=21),
    m.FillRemote(worker=21, tasks=((7, m.FILL_ROWS, 2, 310, 0, 256, 9),), keys=(b"\x05",)),
    m.Revoke(task=7),
    m.Unreachable(reason="no cluster answers at 10.0.0.1:6379", is_final=True),
    m.RemoteReady(worker=21, node="cpu-7-1a2b3c4d", processor="AMD EPYC 7763"),
    m.RemoteAnswer(worker=21, packet=b"\x92<", transfer_us=12_000),
    m.Revoked(task=7),
    m.LateAnswer(worker=21, task=7),
    m.RemoteEnded(worker=21, reason="the node is gone", is_final=True),
    m.DataDiffers(worker=21, task=8, path="/data/größe.bin", what="its size", is_recent=True),
    m.RemoteWaits(reason="waiting for 4 CPUs on one node"),
    m.BridgeUsed(received_bytes=1 << 31, bridge_us=900_000, raylet_us=3_700_000),
    m.RemotePrinted(worker=21, lines=("größe 3".encode(),), left_out=2),
    m.TrainerEnvironment(environment=b"\x95"),
    m.Declared(spec=b"\x80", name="/prefetchd-0a1b2c3d-program-2", program_bytes=4096),
)

BARE_MESSAGES: tuple[m.Message, ...] = (m.Hello(1, "control", "prefetchd 0.1", 4322), m.Published())

SPEC = StreamSpec(
    fingerprint=FINGERPRINT,
    seed=(1 << 63) - 1,
    order="sequential",
    length=1_281_167,
    batch_size=256,
    order_version=1,
    drop_last=True,
    rank=3,
    world_size=8,
    drop_uneven=True,
    logical_shards=5,
    on_error="skip",
    equal_epochs=True,
    name="imagenet/träin",
    seed_source="torch",
    buffer_bytes=1 << 32,
    buffer_batches=12,
    epoch_steps=5005,
    minimum_slots=6,
    low_watermark=2,
    high_watermark=10,
    lookback=1,
    workers=7,
    timeout_s=1.5,
    store="files",
    directory="/mnt/räm",
    epochs=90,
    dealt=True,
    remote_workers=16,
    remote_resources='{"fast_disk": 0.5, "memory": 1024}',
    private=True,
)
BARE_SPEC = StreamSpec(FINGERPRINT, 0, "sequential", 10, 4)

HEADER = SegmentHeader(
    slots=5,
    slot_bytes=8192,
    created_ns=1_700_000_000_123_456_789,
    daemon_generation=6,
    fingerprint=FINGERPRINT,
    row_layout_bytes=123,
    spec_bytes=345,
    program_name="/prefetchd-0a1b2c3d-program-1",
    consumers=3,
)
SLOT_RECORDS = (
    SlotRecord(SLOT_READY, 3, 17, 2, 300, 20_000, 0x1122334455667788, 3, 1),
    SlotRecord(SLOT_EMPTY),
    SlotRecord(SLOT_CONTINUED, 1, 17, 2, 300),
    SlotRecord(SLOT_CONTINUED, 1, 17, 2, 300, next_slot=2),
    SlotRecord(SLOT_FILLING, 1, (1 << 64) - 1, 3, 0),
)
CONSUMER_RECORD = ConsumerRecord(4321, 7, 2, 301, 100_301, 151, 9, 75, 1_234_567_890_123, 2)
MARKS = (17, 0, 0, 0, 16)
OFFERS = (1 << 17, 0, 1 | 1 << 1, 0, 1 << 31)
RESERVED_SLOTS = 3

PAYLOAD_META: PayloadMeta = layout_payload(
    [(4 * 3 * 5, TENSOR), (16, TENSOR), (1000, BUFFER)],
    (
        ViewEntry(0, DTYPES.index("uint8"), 0, (4, 3, 5), (15, 5, 1)),
        ViewEntry(0, DTYPES.index("uint8"), 2, (2, 3), (15, 5)),
        ViewEntry(1, DTYPES.index("int64"), 0, (2,), (1,)),
        ViewEntry(1, DTYPES.index("bfloat16"), 7, (), ()),
    ),
    b"\x80\x05]\x94(K\x00K\x01e.",
)
ROW_LAYOUT = RowLayout(
    rows=4,
    signature=b"(uint8(3, 5), int64())",
    meta=layout_payload(
        [(60, TENSOR), (32, TENSOR)],
        (
            ViewEntry(0, DTYPES.index("uint8"), 0, (4, 3, 5), (15, 5, 1)),
            ViewEntry(1, DTYPES.index("int64"), 0, (4,), (1,)),
        ),
        b"\x80\x05K\x00K\x01\x86.",
    ),
)

ENVIRONMENT = Environment(
    executable=b"/usr/bin/python3",
    sys_path=("", "/home/u/tr\udce4in", "/usr/lib/python3"),
    directory=b"/home/u/\xff",
    variables={b"PATH": b"/usr/bin", b"HOME": b"/home/u", b"\xfe": b"\xff"},
    preload=("torch", "PIL"),
)
PROGRAM = ProgramLayout(len(encode_environment(ENVIRONMENT)), 5000, (1, 4096, 0, 10_000))

EXCEPTION = RemoteException(
    "builtins.KeyError", "'größe'", "Traceback (most recent call last):\n  ...\n", "sample 17", b"\x80\x05N."
)
