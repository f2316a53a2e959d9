/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The io_uring backend: one ring per device, used by the flusher's thread alone.
 *
 * What the flusher asks for (sync_file_range, fadvise, fsync) always runs on the ring's worker
 * threads; the ring's worth is that submitting and reaping many costs one system call, and that
 * the kernel bounds and reuses the workers. wake() is an eventfd that the ring itself reads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backend_plain.h"
#include "dontcache/backend.h"
#include "util.h"

#define RING_ENTRIES 256
#define WORKERS                                                                                    \
	16 /* turns in flight are few and long: 8 keep any device busy, drops need some too */

struct uring {
	struct dc_backend be;
	struct io_uring ring;
	int event_fd;
	uint64_t event; /* what the ring reads from event_fd */
	bool armed;	/* that read is in the ring */
	struct dc_op *done;
};

/* User data of the completion that carries nothing. */
static _Alignas(8) char event_tag;

/* And of the first half of an operation of two: the operation, marked. */
#define FIRST_HALF 1UL

/* A place in the submission queue, with `after` more behind it that need no submission between. */
static struct io_uring_sqe *get_sqe(struct uring *u, unsigned int after)
{
	while (io_uring_sq_space_left(&u->ring) <= after)
		io_uring_submit(&u->ring);
	return io_uring_get_sqe(&u->ring);
}

/* The helper's length is 32 bit; a sparse turn may be longer. 0 means "to the end of the file", which
 * does more than was asked but never less. */
static unsigned int short_len(const struct dc_op *op)
{
	return op->len > UINT32_MAX ? 0 : (unsigned int)op->len;
}

/* The kernel takes offset + length for the last byte, and 0 for the end of the file. */
static void sync_range(struct io_uring_sqe *sqe, const struct dc_op *op)
{
	if (op->len == 0 || op->len > UINT32_MAX)
		return; /* prepared for the whole file */
	sqe->off = op->offset;
	sqe->len = op->len > 1 ? (unsigned int)op->len - 1 : 1;
}

static void uring_submit(struct dc_backend *be, struct dc_op *op)
{
	struct uring *u = (struct uring *)be;
	struct io_uring_sqe *sqe = get_sqe(u, 1);

	op->res = 0;
	switch (op->kind) {
	case DC_OP_WRITEBACK:
		if (op->strict) {
			io_uring_prep_sync_file_range(sqe, op->fd, short_len(op), op->offset,
						      DC_STRICT);
			break;
		}
		/* Linked: the wait begins when the start has returned. Its failure must not be lost,
		 * since a file system may tell it to nobody else; and the kernel neither breaks the
		 * link for it nor takes it for a failure where successes are to be passed over in
		 * silence (IOSQE_CQE_SKIP_SUCCESS). */
		io_uring_prep_sync_file_range(sqe, op->fd, short_len(op), op->offset, DC_START);
		sqe->flags |= IOSQE_IO_LINK;
		io_uring_sqe_set_data64(sqe, (uintptr_t)op | FIRST_HALF);
		sqe = get_sqe(u, 0);
		io_uring_prep_sync_file_range(sqe, op->fd, short_len(op), op->offset, DC_WAIT);
		break;
	case DC_OP_DROP:
		io_uring_prep_fadvise(sqe, op->fd, op->offset, short_len(op), POSIX_FADV_DONTNEED);
		break;
	case DC_OP_SYNC:
		io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
		sync_range(sqe, op);
		break;
	}
	io_uring_sqe_set_data(sqe, op);
}

static void reap(struct uring *u)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;

	io_uring_for_each_cqe(&u->ring, head, cqe)
	{
		uintptr_t data = io_uring_cqe_get_data64(cqe);
		struct dc_op *op = (struct dc_op *)(data & ~FIRST_HALF);

		n++;
		if (data == (uintptr_t)&event_tag) {
			u->armed = false;
		} else if (data & FIRST_HALF) {
			op->res = cqe->res;
		} else {
			/* A failed start counts, unless the wait has an error of its own. */
			if (op->res >= 0 || (cqe->res < 0 && cqe->res != -ECANCELED))
				op->res = cqe->res;
			op->next = u->done;
			u->done = op;
		}
	}
	io_uring_cq_advance(&u->ring, n);
}

static struct dc_op *uring_wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct uring *u = (struct uring *)be;
	struct __kernel_timespec ts = { .tv_sec = timeout_ns / 1000000000,
					.tv_nsec = timeout_ns % 1000000000 };
	struct io_uring_cqe *cqe;
	struct dc_op *done;

	if (!u->armed) {
		struct io_uring_sqe *sqe = get_sqe(u, 0);

		io_uring_prep_read(sqe, u->event_fd, &u->event, sizeof(u->event), 0);
		io_uring_sqe_set_data(sqe, &event_tag);
		u->armed = true;
	}
	io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, timeout_ns < 0 ? NULL : &ts, NULL);
	reap(u);
	done = u->done;
	u->done = NULL;
	return done;
}

static void uring_wake(struct dc_backend *be)
{
	struct uring *u = (struct uring *)be;
	uint64_t one = 1;
	ssize_t rc;

	do
		rc = write(u->event_fd, &one, sizeof(one));
	while (rc < 0 && errno == EINTR);
}

static void uring_free(struct dc_backend *be)
{
	struct uring *u = (struct uring *)be;

	io_uring_queue_exit(&u->ring);
	close(u->event_fd);
	free(u);
}

static const struct dc_backend_ops uring_ops = {
	.name = "io_uring",
	.submit = uring_submit,
	.wait = uring_wait,
	.wake = uring_wake,
	.sync = dc_plain_sync,
	.writeback = dc_plain_writeback,
	.drop = dc_plain_drop,
	.cachestat = dc_plain_cachestat,
	.error = dc_plain_error,
	.reopen = dc_plain_reopen,
	.free = uring_free,
};

/* Does this kernel know the operations? */
static int probe(struct io_uring *ring)
{
	struct io_uring_probe *p = io_uring_get_probe_ring(ring);
	int rc = 0;

	if (!p)
		return -EOPNOTSUPP;
	if (!io_uring_opcode_supported(p, IORING_OP_SYNC_FILE_RANGE) ||
	    !io_uring_opcode_supported(p, IORING_OP_FADVISE) ||
	    !io_uring_opcode_supported(p, IORING_OP_FSYNC) ||
	    !io_uring_opcode_supported(p, IORING_OP_READ))
		rc = -EOPNOTSUPP;
	io_uring_free_probe(p);
	return rc;
}

struct dc_backend *dc_backend_uring(int *err)
{
	struct uring *u = dc_zalloc(sizeof(*u));
	unsigned int workers[2] = { WORKERS, WORKERS };

	*err = io_uring_queue_init(RING_ENTRIES, &u->ring, 0);
	if (*err < 0) {
		free(u);
		return NULL;
	}
	*err = probe(&u->ring);
	u->event_fd = *err < 0 ? -1 : eventfd(0, EFD_CLOEXEC);
	if (u->event_fd < 0) {
		if (*err == 0)
			*err = -errno;
		io_uring_queue_exit(&u->ring);
		free(u);
		return NULL;
	}
	/* Best effort: without it the kernel's default (4 per CPU) holds. */
	io_uring_register_iowq_max_workers(&u->ring, workers);
	u->be.ops = &uring_ops;
	return &u->be;
}
