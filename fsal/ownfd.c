/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A descriptor of our own for a file that the sub-FSAL manages (R9).
 *
 * The sub-FSAL's wire handle carries the kernel's file handle; open_by_handle_at(2) turns it into a
 * descriptor. The layout is that of FSAL_VFS since V3.0; clients keep such handles across upgrades
 * of the server, so it cannot change silently. And if it did: what was opened must be a regular
 * file with the right inode number on the right device, or it is not used.
 *
 *     byte 0   bits 0-4 kind of fsid, bit 5 "dummy", bits 6-7 width of the handle type
 *     then     the fsid, by its kind
 *     then     the kernel's handle type (1, 2 or 4 bytes), and its opaque handle
 *
 * Read-only: writeback, fdatasync and fadvise need no more, and a descriptor open for writing would
 * make executing the file fail with ETXTBSY.
 */
#include "fsal_dontcache.h"

#include <sys/sysmacros.h>

#define WIRE_MAX 128
#define KIND_MASK 0x1f
#define DUMMY 0x20

union kernel_handle {
	struct file_handle h;
	char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
};

static int kernel_handle_of(const uint8_t *wire, size_t len, union kernel_handle *out)
{
	static const uint8_t fsid_len[] = { 0, 8, 8, 16, 8, 8 };
	static const uint8_t type_len[] = { 0, 1, 2, 4 };
	unsigned int kind, width;
	size_t at = 1;

	if (len < 1 || (wire[0] & DUMMY))
		return -EOPNOTSUPP;
	kind = wire[0] & KIND_MASK;
	width = type_len[wire[0] >> 6];
	if (kind >= sizeof(fsid_len) || width == 0)
		return -EOPNOTSUPP;
	at += fsid_len[kind];
	if (at + width > len || len - at - width > MAX_HANDLE_SZ)
		return -EINVAL;
	switch (width) {
	case 1:
		out->h.handle_type = wire[at];
		break;
	case 2: {
		int16_t v;

		memcpy(&v, wire + at, sizeof(v));
		out->h.handle_type = v;
		break;
	}
	default: {
		int32_t v;

		memcpy(&v, wire + at, sizeof(v));
		out->h.handle_type = v;
	}
	}
	at += width;
	out->h.handle_bytes = (unsigned int)(len - at);
	memcpy(out->h.f_handle, wire + at, len - at);
	return 0;
}

int dcf_own_fd(struct dcf_export *e, struct fsal_obj_handle *sub)
{
	uint8_t wire[WIRE_MAX];
	struct gsh_buffdesc d = { .addr = wire, .len = sizeof(wire) };
	struct fsal_filesystem *fs = sub->fs;
	int rc, fd, root = e->root_fd;
	union kernel_handle k;
	fsal_status_t status;
	dev_t dev = e->dev;
	struct stat st;

	if (sub->type != REGULAR_FILE || root < 0)
		return -EOPNOTSUPP;
	DCF_SUB(e, status = sub->obj_ops->handle_to_wire(sub, FSAL_DIGEST_NFSV4, &d));
	if (FSAL_IS_ERROR(status))
		return -EOPNOTSUPP;
	rc = kernel_handle_of(wire, d.len, &k);
	if (rc < 0)
		return rc;
	/* A file system mounted below the export's root is another one. */
	if (fs && (fs->dev.major != major(dev) || fs->dev.minor != minor(dev))) {
		root = open(fs->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (root < 0)
			return -errno;
		dev = makedev(fs->dev.major, fs->dev.minor);
	}
	fd = open_by_handle_at(root, &k.h, O_RDONLY | O_CLOEXEC | O_NOATIME | O_NONBLOCK);
	rc = fd < 0 ? -errno : 0;
	if (root != e->root_fd)
		close(root);
	if (fd < 0)
		return rc;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == sub->fileid &&
	    st.st_dev == dev)
		return fd;
	close(fd);
	return -ESTALE;
}
