"""What a hub keeps between two claims survives, and only where it fits."""

from shoal.base.ids import BlobId, RunId
from shoal.hub.alignment import Alignment, AlignmentFile
from shoal.runlog.entries import Graft, Head
from shoal.worlds.simulated.disk import SimDisk

REGION = RunId("r" * 32)
GRAFT = Graft(parent=Head(7, "a" * 64), blob=BlobId("b" * 64), size_bytes=9)


def _alignment(params: int = 3, **changes: object) -> Alignment:
    values = {"anchor": b"a" * 4 * params, "known": b"k" * 4 * params, "news": b"", "claimed": 5, **changes}
    return Alignment(**values)  # type: ignore[arg-type]


def _file() -> tuple[AlignmentFile, SimDisk]:
    disk = SimDisk()
    return AlignmentFile(disk, lambda point: None), disk


def test_it_is_found_again_by_its_claim() -> None:
    file, disk = _file()
    file.save(-1, _alignment(claimed=1))
    file.save(0, _alignment(claimed=2, graft=GRAFT, news=b"n" * 12))
    assert file.load(-1, 3, REGION) == _alignment(claimed=1), (
        "until the claim behind the newer one is durable"
    )
    again = AlignmentFile(disk, lambda point: None)
    assert again.load(0, 3, REGION) == _alignment(claimed=2, graft=GRAFT, news=b"n" * 12)
    file.save(1, _alignment(claimed=3))
    assert file.load(-1, 3, REGION) is None and file.load(0, 3, REGION) is not None


def test_what_does_not_fit_is_none() -> None:
    file, disk = _file()
    assert file.load(0, 3, REGION) is None
    file.save(0, _alignment())
    assert file.load(0, 4, REGION) is None
    file.save(0, _alignment(news=b"short"))
    assert file.load(0, 3, REGION) is None
    for name in disk.list(""):
        disk.write(name, b"rubbish")
    assert file.load(0, 3, REGION) is None


def test_that_of_another_region_is_none() -> None:
    file, _ = _file()
    file.save(0, _alignment(region=RunId("s" * 32)))
    assert file.load(0, 3, REGION) is None
    file.save(0, _alignment(region=REGION))
    assert file.load(0, 3, REGION) == _alignment(region=REGION)
