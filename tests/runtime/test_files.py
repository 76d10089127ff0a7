"""Files are written whole or not at all, and what cannot be written is known before the work."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from pibroch.runtime.errors import InputError
from pibroch.runtime.files import check_writable, write_atomically


def test_a_new_file_has_the_users_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "deep" / "new.txt", "ä")
    finally:
        os.umask(before)
    new = tmp_path / "deep" / "new.txt"
    assert new.read_bytes() == b"\xc3\xa4"
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    new.chmod(0o600)
    write_atomically(new, b"\x00")
    assert new.read_bytes() == b"\x00"
    assert stat.S_IMODE(new.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    written = 0

    def write(handle: int, data: memoryview) -> int:
        nonlocal written
        if written >= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += 2
        return 2

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(InputError, match=r"a\.json: cannot be written, the disk is full: free some space"):
        write_atomically(path, "a long text")
    assert path.read_text() == "old"
    with pytest.raises(InputError, match="the disk is full"):
        check_writable(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.json", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", [check_writable, lambda path: write_atomically(path, "x")])
def test_what_cannot_be_written_is_named_with_its_reason(tmp_path: Path, use: object) -> None:
    assert callable(use)
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match=r"file/below: cannot be written, a part of the path is a file"):
        use(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="it is a folder: name a file"):
        use(tmp_path)
    with pytest.raises(InputError, match="the name is too long"):
        use(tmp_path / ("x" * 300))
    if os.geteuid():  # root may
        (tmp_path / "file").chmod(0o400)
        with pytest.raises(InputError, match="you may not write there"):
            use(tmp_path / "file")
        tmp_path.chmod(0o500)
        with pytest.raises(InputError, match="you may not write there"):
            use(tmp_path / "new")
        tmp_path.chmod(0o700)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_check_makes_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b" / "c.txt")
    assert list(tmp_path.iterdir()) == []


def test_devices_and_pipes_are_written_to_and_stay(tmp_path: Path) -> None:
    write_atomically("/dev/null", "x")
    assert not Path("/dev/null").is_file()
    read, write = os.pipe()
    write_atomically(f"/dev/fd/{write}", "through")
    os.close(write)
    assert os.read(read, 100) == b"through"
    os.close(read)
    if Path("/dev/full").exists():
        with pytest.raises(InputError, match="/dev/full: cannot be written, the disk is full"):
            write_atomically("/dev/full", "x")
