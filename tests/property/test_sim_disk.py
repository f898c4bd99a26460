"""The simulated disk keeps exactly what it promises: what was synced, under names that were synced."""

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.disk import folder_of
from shoal.worlds.simulated.disk import SimDisk

from .modest import many

NAMES = st.sampled_from(["a", "b", "f/a", "f/b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "append"]), NAMES, st.binary(max_size=8)),
        st.tuples(st.just("write_at"), NAMES, st.binary(min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["sync", "remove", "truncate"]), NAMES, st.just(b"")),
        st.tuples(st.just("rename"), NAMES, NAMES.map(str.encode)),
        st.tuples(st.just("folder"), st.sampled_from(["", "f"]), st.just(b"")),
    ),
    max_size=20,
)


@many
@given(STEPS, st.integers(0, 2**32))
def test_what_was_synced_survives_and_reads_agree_with_a_dictionary(
    steps: list[tuple[str, str, bytes]], seed: int
) -> None:
    disk = SimDisk()
    files: dict[str, bytearray] = {}
    synced: dict[int, bytes] = {}
    durable: dict[str, bytearray] = {}
    for kind, name, value in steps:
        if kind not in ("write", "append", "write_at", "folder", "remove") and name not in files:
            continue
        match kind:
            case "write":
                disk.write(name, value)
                files.setdefault(name, bytearray())[:] = value
            case "append":
                disk.append(name, value)
                files.setdefault(name, bytearray()).extend(value)
            case "write_at":
                disk.write_at(name, 3, value)
                held = files.setdefault(name, bytearray())
                held.extend(bytes(max(0, 3 - len(held))))
                held[3 : 3 + len(value)] = value
            case "sync":
                disk.sync(name)
                synced[id(files[name])] = bytes(files[name])
            case "truncate":
                disk.truncate(name, 2)
                del files[name][2:]
            case "remove":
                disk.remove(name)
                files.pop(name, None)
            case "rename" if value.decode() != name:
                disk.rename(name, value.decode())
                files[value.decode()] = files.pop(name)
            case "folder":
                disk.sync_folder(name)
                for path in {*files, *durable}:
                    if folder_of(path) == name:
                        durable.pop(path, None)
                        if path in files:
                            durable[path] = files[path]
    for name in ("a", "b", "f/a", "f/b"):
        assert disk.size(name) == (len(files[name]) if name in files else None)
        assert name not in files or disk.read(name) == bytes(files[name])
    disk.crash(random.Random(seed))
    for name, held in durable.items():
        if files.get(name) is held and synced.get(id(held)) == bytes(held):
            assert disk.read(name) == bytes(held), "synced content under a synced name"
    before = {name: disk.read(name) for name in ("a", "b", "f/a", "f/b") if disk.size(name) is not None}
    disk.crash(random.Random(seed + 1))
    assert before == {
        name: disk.read(name) for name in ("a", "b", "f/a", "f/b") if disk.size(name) is not None
    }, "a second power cut changes nothing"
