"""A blob store in memory, for tests."""

import blake3

from shoal.base.ids import BlobId


class MemoryBlobs:
    def __init__(self) -> None:
        self.held: dict[BlobId, bytes] = {}

    def put(self, data: bytes) -> BlobId:
        blob = BlobId(blake3.blake3(data).hexdigest())
        self.held[blob] = data
        return blob

    def read(self, blob: BlobId) -> bytes:
        return self.held[blob]
