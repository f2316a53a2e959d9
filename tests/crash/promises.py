# SPDX-License-Identifier: LGPL-3.0-or-later
"""Who was promised what, and when: the memory of the clients of a power-loss test.

A file is an Area of slots: ranges of odd sizes at odd places, each owned by one writer, which fills
it again and again. Each filling is a Version with bytes of its own, and with three moments, told
as marks in the log of the disk (harness/logdisk.py): before it was sent, after its reply, and after
the COMMIT or stable reply that promised it. At a point of the log that holds marks 0..k-1

    promised   the newest Version whose promise stands before mark k
    possible   that one and all later ones that were sent before the power went

and every byte of the slot must be that of a possible Version. Page by page, or within a page, the
disk may hold different ones: nothing orders the writeback of overwrites that nobody committed.
"""

import bisect
import collections
import hashlib
import os

PAGE = 4096


class Version:
    __slots__ = ('number', 'sent', 'acked', 'promised', 'verifier')

    def __init__(self, number, sent):
        self.number, self.sent = number, sent
        self.acked = self.promised = self.verifier = None


class Slot:
    """versions, oldest first. Only its owner's thread touches it while the load runs."""

    __slots__ = ('area', 'offset', 'length', 'versions')

    def __init__(self, area, offset, length):
        self.area, self.offset, self.length = area, offset, length
        self.versions = []

    @property
    def end(self):
        return self.offset + self.length

    @property
    def idle(self):
        return not self.versions or self.versions[-1].acked is not None

    def new_version(self, sent):
        self.versions.append(Version(len(self.versions), sent))
        return self.versions[-1]

    def view(self, version):
        return self.area.patterns(version.number).view(self.offset, self.length)

    def at(self, k):
        """(promised version or None, possible versions) when marks 0..k-1 are on the disk."""
        sent = [v for v in self.versions if v.sent < k]
        for i in range(len(sent) - 1, -1, -1):
            if sent[i].promised is not None and sent[i].promised < k:
                return sent[i], sent[i:]
        return None, sent


class Area:
    def __init__(self, name, number, pattern):
        self.name, self.number, self._pattern = name, number, pattern
        self.slots = []
        self._patterns = {}

    def patterns(self, version):
        if version not in self._patterns:
            self._patterns[version] = self._pattern(self.number * 1009 + version)
        return self._patterns[version]

    def append(self, length):
        self.slots.append(Slot(self, self.slots[-1].end if self.slots else 0, length))
        return self.slots[-1]

    def tile(self, lengths):
        for length in lengths:
            self.append(length)
        return self


Loss = collections.namedtuple('Loss', 'name offset length version')


class Verdict:
    """What one image held: bytes promised, Losses, and bytes acknowledged UNSTABLE that are not there."""

    def __init__(self):
        self.promised = self.unstable_gone = 0
        self.lost = []

    @property
    def lost_bytes(self):
        return sum(loss.length for loss in self.lost)


def marks_before(marks, n):
    """How many marks stand among the first n entries of the log."""
    return bisect.bisect_left(marks, n)


def _strange(got, slot, possible):
    """[offset, length] of stretches, page by page, with a byte of no possible version."""
    views = [slot.view(v) for v in possible]
    found = []
    start = slot.offset
    while start < slot.end:
        end = min(start - start % PAGE + PAGE, slot.end)
        a, b = start - slot.offset, end - slot.offset
        piece = bytes(got[a:b])
        # A page under writeback while it is overwritten may hold some of each, so bytes decide; but many pages
        # of zeros or of nothing need no such care.
        if not any(piece == view[a:b] for view in views) and (
                len(piece) < b - a or not piece.strip(b'\0') or
                any(byte not in choice for byte, choice in zip(piece, zip(*(view[a:b] for view in views))))):
            if found and sum(found[-1]) == start:
                found[-1][1] += end - start
            else:
                found.append([start, end - start])
        start = end
    return found


def examine(root, areas, k):
    """Compare the files below root with the promises that held at k marks."""
    verdict = Verdict()
    for area in areas:
        try:
            fd = os.open(os.path.join(root, area.name), os.O_RDONLY)
        except FileNotFoundError:
            fd = None
        for slot in area.slots:
            promised, possible = slot.at(k)
            if not possible:
                continue
            got = os.pread(fd, slot.length, slot.offset) if fd is not None else b''
            if promised is None:
                newest = possible[-1]
                if newest.acked is not None and newest.acked < k and got != slot.view(newest):
                    verdict.unstable_gone += slot.length
                continue
            verdict.promised += slot.length
            if any(got == slot.view(v) for v in possible):
                continue
            for offset, length in _strange(got, slot, possible):
                verdict.lost.append(Loss(area.name, offset, length, promised.number))
        if fd is not None:
            os.close(fd)
    return verdict


def uncommitted(area, k):
    """[(slot, version)]: what a client that saw the server go at k sends again."""
    again = []
    for slot in area.slots:
        promised, possible = slot.at(k)
        if possible and possible[-1] is not promised:
            again.append((slot, possible[-1]))
    return again


def wanted_md5(area, k):
    """(md5, size) of the file once everything sent by then is in it; what was never written is zero."""
    digest, size = hashlib.md5(), 0
    for slot in area.slots:
        _, possible = slot.at(k)
        if possible:
            digest.update(bytes(slot.offset - size))
            digest.update(slot.view(possible[-1]))
            size = slot.end
    return digest.hexdigest(), size
