"""A wheel with more files in it: those that say what the programs in it are made of."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from datetime import UTC, datetime


def with_files(wheel: bytes, files: dict[str, bytes], epoch: int) -> bytes:
    """Returns the wheel with files added to its dist-info folder, which replace those of the same name. All entries are
    sorted and have one time, so that the bytes depend on nothing else."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as given:
        contents = {
            info.filename: (given.read(info), info.external_attr) for info in given.infolist() if not info.is_dir()
        }
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    about = record.removesuffix("RECORD")
    contents |= {about + name: (data, 0o100644 << 16) for name, data in files.items()}
    lines = [recorded(name, data) for name, (data, _) in sorted(contents.items()) if name != record]
    contents[record] = ("".join([*lines, f"{record},,\n"]).encode(), 0o100644 << 16)
    # RECORD is last, as wheels should have it.
    names = [*sorted(name for name in contents if name != record), record]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            data, attributes = contents[name]
            info = zipfile.ZipInfo(name, datetime.fromtimestamp(epoch, UTC).timetuple()[:6])
            info.external_attr, info.compress_type, info.create_system = attributes, zipfile.ZIP_DEFLATED, 3
            archive.writestr(info, data)
    return packed.getvalue()


def recorded(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"
