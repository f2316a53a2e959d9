# SPDX-License-Identifier: LGPL-3.0-or-later
"""Pieces that the tests and the benchmarks share.

disk     a file system of its own on a loop device, as slow as a test wants it
logdisk  the same with a log of every write and flush; logwrites replays it to any point
ganesha  a private NFS-Ganesha server on the loopback interface
kernel   what the kernel itself says about cached, dirty and written-back pages
age      brings the page cache to the state of a server that has been up for weeks
testing  skip, temporary folders, the main() of a test file

Nothing here touches the machine outside what it made itself: ports are chosen free, folders are
private, processes are ended by their id, and everything is undone on every way out.
"""
