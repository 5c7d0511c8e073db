"""Downloads against a server of this machine that breaks off, lies and forgets."""

import os
import threading
import time
from dataclasses import replace

import pytest

from nanode.data import DataError, download
from nanode.data.download import fetch, obtain
from nanode.data.source import OfficialFile
from tests.data.official import facts

CONTENT = bytes(range(256)) * 4000
EMPTY = OfficialFile("data.tar.gz", 0, "", "", ())


@pytest.fixture
def file(server):
    server.files["data.tar.gz"] = CONTENT
    return facts(EMPTY, CONTENT, (server.url("data.tar.gz"),))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file_arrives_alone(file, server, tmp_path):
    seen = []
    path = fetch(file, tmp_path / "new" / "root", lambda *report: seen.append(report))
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["data.tar.gz"]
    assert seen[-1] == ("data.tar.gz", len(CONTENT), len(CONTENT))
    assert obtain(file, path.parent) == path  # and is not fetched again
    assert server.ranges == [None]


def test_a_broken_connection_is_taken_up_where_it_broke(file, server, tmp_path):
    server.answers = [("cut", 1000), ("cut", 0), 503, ("cut", 500_000)]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, 1000, 1000, 1000, 501_000]
    assert names(tmp_path) == ["data.tar.gz"]


def test_what_came_before_a_line_stalled_is_kept(file, server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.5)
    server.answers = [("stall", 300_000), ("stall", 200_000)]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    server.gone_on.set()
    assert server.ranges == [None, 300_000, 500_000]


def test_a_later_download_goes_on(file, server, tmp_path):
    server.answers = [("cut", 1000), 503, 503, 503]
    with pytest.raises(DataError, match="503"):
        fetch(file, tmp_path)
    assert names(tmp_path) == ["data.tar.gz.part"]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == 1000
    assert names(tmp_path) == ["data.tar.gz"]


def test_an_interrupted_process_keeps_its_part(file, tmp_path):
    def stop(*report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path, stop)
    assert names(tmp_path) == ["data.tar.gz.part"]


def test_a_server_without_ranges_starts_over(file, server, tmp_path):
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:1000])
    server.answers = ["plain"]
    assert fetch(file, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [1000, len(CONTENT), 2 * len(CONTENT)])
def test_a_spoilt_part_is_thrown_away(file, tmp_path, length):
    (tmp_path / "data.tar.gz.part").write_bytes(b"x" * length)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["data.tar.gz"]


def test_the_part_of_a_killed_process_is_claimed_once_it_is_still(file, server, tmp_path):
    orphan = tmp_path / "data.tar.gz.1-00000000.part"
    orphan.write_bytes(CONTENT[:1000])
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None]  # its owner may live
    assert orphan.exists()
    (tmp_path / "data.tar.gz").unlink()
    still = time.time() - 2 * download.STALE
    os.utime(orphan, (still, still))
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, 1000]
    assert names(tmp_path) == ["data.tar.gz"]


def test_of_several_still_parts_the_longest_is_claimed_and_none_is_left(file, server, tmp_path):
    still = time.time() - 2 * download.STALE
    for n, length in enumerate((500, 1000, 400)):
        part = tmp_path / f"data.tar.gz.{n}-00000000.part"
        part.write_bytes(CONTENT[:length])
        os.utime(part, (still, still))
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [1000]
    assert names(tmp_path) == ["data.tar.gz"]


def test_many_at_once_all_succeed(file, tmp_path):
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:1000])
    found, failed = [], []

    def work():
        try:
            found.append(fetch(file, tmp_path).read_bytes() == CONTENT)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert found == [True] * 6
    assert names(tmp_path) == ["data.tar.gz"]


def test_tampered_content_is_refused_and_leaves_nothing(file, server, tmp_path):
    server.files["data.tar.gz"] = b"y" + CONTENT[1:]
    with pytest.raises(DataError, match=r"expected MD5 .*, found"):
        fetch(file, tmp_path)
    assert names(tmp_path) == []


def test_a_collision_of_md5_is_refused(file, tmp_path):
    with pytest.raises(DataError, match="expected SHA-256 0, found"):
        fetch(replace(file, sha256="0"), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "other",
    [CONTENT[:-1], CONTENT + b"z", b"<html>sign in</html>"],
    ids=["shorter", "longer", "a page"],
)
@pytest.mark.parametrize("how", [None, "no length"])
def test_another_size_is_refused(file, server, tmp_path, other, how):
    server.files["data.tar.gz"] = other
    server.answers = [how] * 9
    with pytest.raises(DataError, match=r"bytes there|closed after"):
        fetch(file, tmp_path)
    assert "data.tar.gz" not in names(tmp_path)


@pytest.mark.parametrize("how", ["wrong range", 416])
def test_a_server_that_mishandles_ranges_is_asked_for_the_whole(file, server, tmp_path, how):
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:1000])
    server.answers = [how, ("cut", 3000)]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [1000, None, None]


def test_a_part_outlives_an_address_that_fails_for_good(file, server, tmp_path):
    (tmp_path / "data.tar.gz.part").write_bytes(CONTENT[:1000])
    server.answers = ["wrong range", 404]
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(file, tmp_path)
    assert (tmp_path / "data.tar.gz.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("status", [408, 429, 500])
def test_a_server_that_asks_for_patience_is_asked_again(file, server, tmp_path, status):
    server.answers = [status]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_after_an_address_that_leads_nowhere_the_next_is_tried(file, server, tmp_path):
    server.files["mirror"] = CONTENT
    server.answers = [("redirect", "http://[::1")]
    both = replace(file, urls=(*file.urls, server.url("mirror")))
    assert fetch(both, tmp_path).read_bytes() == CONTENT
    server.answers = [("redirect", "http://[::1")] * 2
    with pytest.raises(DataError, match="Invalid IPv6 URL"):
        fetch(both, tmp_path / "other")


def test_the_next_address_goes_on_where_the_first_failed(file, server, tmp_path):
    server.files["mirror"] = CONTENT
    server.answers = [("cut", 1000), 404]
    both = replace(file, urls=(*file.urls, server.url("mirror")))
    assert fetch(both, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, 1000, 1000]


def test_without_a_network_the_message_says_what_to_put_where(file, server, tmp_path):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(DataError) as caught:
        obtain(file, tmp_path / "some")
    path = tmp_path / "some" / file.name
    for part in (file.urls[0], "1,024,000 bytes", file.md5, str(path), "refused"):
        assert part in str(caught.value)
    assert names(tmp_path) == []  # not even the folder


def test_downloads_can_be_switched_off(file, server, tmp_path):
    with pytest.raises(DataError, match="downloads are switched off"):
        obtain(file, tmp_path, download=False)
    assert server.ranges == []


@pytest.mark.parametrize(
    ("content", "message"),
    [(CONTENT[:-1], "expected 1,024,000 bytes, found 1,023,999"), (CONTENT[::-1], "expected MD5")],
    ids=["truncated", "tampered"],
)
def test_a_file_put_there_by_hand_is_verified_and_kept(file, server, tmp_path, content, message):
    (tmp_path / "data.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        obtain(file, tmp_path)
    assert names(tmp_path) == ["data.tar.gz"]
    assert server.ranges == []
