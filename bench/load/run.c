/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * run.c: the poll loop. One thread serves all connections: a WRITE costs it a header and a share of
 * one system call to send and of one to receive. The payload is copied once, by the kernel into
 * the socket. (sendfile from a memory file, which saves that copy, was measured and costs as much:
 * it cuts the stream into 4 KiB pieces, and both ends pay for each.)
 */
#include "load.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define JUKEBOX_DELAY_NS 20000000
#define GATHER 16

volatile sig_atomic_t load_stop;

int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__attribute__((format(printf, 3, 4))) static int fail(struct load *load, const struct writer *w,
						      const char *format, ...)
{
	va_list args;
	if (load->error[0]) /* the first failure is the one that explains */
		return -1;
	int n = snprintf(load->error, sizeof load->error, "writer %u: ", w->index);
	va_start(args, format);
	vsnprintf(load->error + n, sizeof load->error - (size_t)n, format, args);
	va_end(args);
	return -1;
}

/* ---- issuing ---- */

static void enqueue(struct load *load, struct writer *w, unsigned index)
{
	struct slot *s = &w->slots[index];
	unsigned commit_slot = load->opt->depth;
	s->xid = w->sequence++ << 12 | index;
	if (index == commit_slot) {
		s->header_len = (uint32_t)nfs3_put_commit(s->header, s->xid, &w->fh, 0, 0);
		s->payload_len = 0;
	} else if (s->committing) {
		s->header_len = (uint32_t)nfs3_put_commit(s->header, s->xid, &w->fh, s->offset,
							  load->opt->block);
		s->payload_len = 0;
	} else if (load->opt->read) {
		s->header_len = (uint32_t)nfs3_put_read(s->header, s->xid, &w->fh, s->offset,
							load->opt->block);
		s->payload_len = 0;
	} else {
		uint32_t rest = load->opt->block - s->done;
		unsigned char stamp[PAYLOAD_STAMP];
		s->header_len = (uint32_t)nfs3_put_write(s->header, s->xid, &w->fh,
							 s->offset + s->done, rest,
							 load->opt->stable);
		uint32_t from = s->done;
		if (from < PAYLOAD_STAMP) {
			payload_stamp(&load->payload, w->file, s->offset, stamp);
			memcpy(s->header + s->header_len, stamp + from, PAYLOAD_STAMP - from);
			s->header_len += PAYLOAD_STAMP - from;
			from = PAYLOAD_STAMP;
		}
		s->payload_at = payload_at(&load->payload, w->file, s->offset) + from;
		s->payload_len = load->opt->block - from;
	}
	s->state = SLOT_QUEUED;
	w->queue[(w->queue_head + w->queue_len++) % (load->opt->depth + 1)] = (uint16_t)index;
}

static bool next_offset(struct load *load, struct writer *w, uint64_t *offset)
{
	const struct options *opt = load->opt;
	bool timed = opt->seconds > 0;
	if (opt->commit_only)
		return false;
	if (timed && (load_stop || now_ns() - load->start_ns >= (int64_t)(opt->seconds * 1e9)))
		return false;
	if (opt->layout == LAYOUT_STREAM) {
		if (!timed && load->stream_next == load->stream_blocks)
			return false;
		w->next++;
		*offset = load->stream_next++ % load->stream_blocks * load_step(opt);
		return true;
	}
	if (!timed && w->next == w->blocks)
		return false;
	uint64_t block = w->next++ % w->blocks;
	*offset = (w->first_block + (w->order ? w->order[block] : block)) * load_step(opt);
	return true;
}

static void finish(struct load *load, struct writer *w, int64_t now)
{
	w->finished = true;
	w->finished_ns = now;
	load->end_ns = now;
	load->running--;
}

/* Fills free slots; once nothing is left to write and nothing is in flight, COMMITs. */
static void issue(struct load *load, struct writer *w, int64_t now)
{
	bool more = true;
	for (unsigned i = 0; i < load->opt->depth && more; i++) {
		struct slot *s = &w->slots[i];
		if (s->state != SLOT_FREE)
			continue;
		more = next_offset(load, w, &s->offset);
		if (more) {
			s->done = 0;
			s->issued_ns = now;
			w->in_flight++;
			enqueue(load, w, i);
		}
	}
	if (w->in_flight || w->finished)
		return;
	struct slot *commit = &w->slots[load->opt->depth];
	if (!load->opt->commit) {
		finish(load, w, now);
	} else if (commit->state == SLOT_FREE) {
		commit->issued_ns = now;
		enqueue(load, w, load->opt->depth);
	}
}

/* ---- sending ---- */

static ssize_t send_gathered(struct load *load, struct writer *w)
{
	struct iovec iov[2 * GATHER];
	size_t n = 0;
	for (unsigned i = 0; i < w->queue_len && i < GATHER; i++) {
		struct slot *s = &w->slots[w->queue[(w->queue_head + i) % (load->opt->depth + 1)]];
		size_t skip = i ? 0 : w->head_sent;
		if (skip < s->header_len) {
			iov[n++] = (struct iovec){ s->header + skip, s->header_len - skip };
			skip = 0;
		} else {
			skip -= s->header_len;
		}
		if (s->payload_len > skip)
			iov[n++] =
				(struct iovec){ (void *)(load->payload.pool + s->payload_at + skip),
						s->payload_len - skip };
	}
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = n };
	return sendmsg(w->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Sends until the socket is full or the queue empty. */
static int send_queue(struct load *load, struct writer *w)
{
	while (w->queue_len) {
		struct slot *s = &w->slots[w->queue[w->queue_head]];
		ssize_t n = send_gathered(load, w);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0)
			return fail(load, w, "send: %s", strerror(n ? errno : EPIPE));
		w->head_sent += (size_t)n;
		while (w->queue_len && w->head_sent >= s->header_len + s->payload_len) {
			w->head_sent -= s->header_len + s->payload_len;
			s->state = SLOT_SENT;
			w->queue_head = (w->queue_head + 1) % (load->opt->depth + 1);
			w->queue_len--;
			if (w->queue_len)
				s = &w->slots[w->queue[w->queue_head]];
		}
	}
	return 0;
}

/* ---- replies ---- */

static void count_bytes(struct load *load, struct writer *w, uint32_t bytes, int64_t now)
{
	size_t tick = (size_t)((now - load->start_ns) / (TIMELINE_MS * 1000000));
	if (tick >= load->timeline_len) {
		size_t len = tick * 2 + 64;
		uint64_t *grown = realloc(load->timeline, len * sizeof *grown);
		if (!grown)
			return;
		memset(grown + load->timeline_len, 0, (len - load->timeline_len) * sizeof *grown);
		load->timeline = grown;
		load->timeline_len = len;
	}
	load->timeline[tick] += bytes;
	load->bytes += bytes;
	w->bytes += bytes;
}

static int check_status(struct load *load, struct writer *w, const struct nfs3_reply *r,
			const char *what)
{
	if (r->status == UINT32_MAX)
		return fail(load, w, "%s: the server refused the RPC", what);
	if (r->status != NFS3_OK)
		return fail(load, w, "%s: the server answers status %u", what, r->status);
	if (w->has_verifier && r->verifier != w->verifier)
		return fail(load, w,
			    "%s: the write verifier changed: the server restarted or lost data",
			    what);
	w->verifier = r->verifier;
	w->has_verifier = !load->opt->read; /* a READ brings none */
	return 0;
}

static void delay(struct load *load, struct slot *s, int64_t now)
{
	load->jukebox++;
	load->delayed++;
	s->state = SLOT_DELAYED;
	s->retry_ns = now + JUKEBOX_DELAY_NS;
}

typedef bool parser(const unsigned char *buf, size_t len, struct nfs3_reply *out);

static parser *parser_of(const struct load *load, const struct writer *w, unsigned index)
{
	if (index == load->opt->depth || w->slots[index].committing)
		return nfs3_parse_commit;
	return load->opt->read ? nfs3_parse_read : nfs3_parse_write;
}

static void complete(struct load *load, struct writer *w, struct slot *s, int64_t now)
{
	histogram_add(&load->latency, (uint64_t)(now - s->issued_ns) / 1000);
	load->last_write_ns = w->last_write_ns = now;
	s->state = SLOT_FREE;
	w->in_flight--;
}

static int handle_reply(struct load *load, struct writer *w, const unsigned char *data, size_t len,
			int64_t now)
{
	struct nfs3_reply r;
	uint32_t xid = 0;
	if (len >= 4)
		memcpy(&xid, data, 4);
	unsigned index = __builtin_bswap32(xid) & 0xfff;
	bool is_commit = index == load->opt->depth;
	if (index > load->opt->depth || !parser_of(load, w, index)(data, len, &r))
		return fail(load, w, "a reply that cannot be understood");
	struct slot *s = &w->slots[index];
	if (s->state != SLOT_SENT || r.xid != s->xid)
		return fail(load, w, "a reply to a request that was not sent");
	load->last_reply_ns = now;
	if (r.status == NFS3ERR_JUKEBOX) {
		delay(load, s, now);
		return 0;
	}
	const char *what = is_commit || s->committing ? "COMMIT" :
			   load->opt->read	      ? "READ" :
							"WRITE";
	if (check_status(load, w, &r, what))
		return -1;
	if (is_commit) {
		w->commit_ns = now - s->issued_ns;
		finish(load, w, now);
		return 0;
	}
	if (s->committing) {
		s->committing = false;
		complete(load, w, s, now);
		return 0;
	}
	uint32_t asked = load->opt->block - s->done;
	if (r.count == 0 || r.count > asked || (load->opt->read && r.count != asked))
		return fail(load, w, "%s of %u bytes answered with %u", what, asked, r.count);
	count_bytes(load, w, r.count, now);
	if (r.count < asked) {
		load->short_writes++;
		s->done += r.count;
		enqueue(load, w, index);
		return 0;
	}
	if (load->opt->commit_each) {
		s->committing = true;
		enqueue(load, w, index);
		return 0;
	}
	complete(load, w, s, now);
	return 0;
}

/* The length of the record at `at` and where it ends, its fragments joined; 0 while it is not all
 * there. */
static size_t take_record(struct writer *w, size_t at, size_t *end)
{
	size_t from = at, total = 0;
	for (bool last = false; !last;) {
		uint32_t mark;
		if (w->rx_len - from < 4)
			return 0;
		memcpy(&mark, w->rx + from, 4);
		mark = __builtin_bswap32(mark);
		last = mark >> 31;
		mark &= 0x7fffffff;
		if (w->rx_len - from - 4 < mark)
			return 0;
		from += 4 + mark;
		total += mark;
	}
	*end = from;
	size_t kept = at + 4;
	for (size_t piece = at; piece < from;) {
		uint32_t mark;
		memcpy(&mark, w->rx + piece, 4);
		mark = __builtin_bswap32(mark) & 0x7fffffff;
		if (kept != piece + 4)
			memmove(w->rx + kept, w->rx + piece + 4, mark);
		kept += mark;
		piece += 4 + mark;
	}
	return total;
}

static int receive(struct load *load, struct writer *w)
{
	ssize_t n = recv(w->fd, w->rx + w->rx_len, w->rx_size - w->rx_len, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return fail(load, w, "recv: %s",
			    n ? strerror(errno) : "the server closed the connection");
	w->rx_len += (size_t)n;
	int64_t now = now_ns();
	size_t at = 0, end = 0;
	for (size_t len; (len = take_record(w, at, &end)) != 0; at = end)
		if (handle_reply(load, w, w->rx + at + 4, len, now))
			return -1;
	if (at == 0 && w->rx_len == w->rx_size)
		return fail(load, w, "a reply of more than %zu bytes", w->rx_size);
	w->rx_len -= at;
	memmove(w->rx, w->rx + at, w->rx_len);
	if (!w->finished)
		issue(load, w, now);
	return 0;
}

/* ---- the loop ---- */

static int flush(struct load *load, struct writer *w, int poll_fd)
{
	if (send_queue(load, w))
		return -1;
	bool wants = w->queue_len != 0;
	if (wants != w->wants_output) {
		struct epoll_event event = { .events = EPOLLIN | (wants ? EPOLLOUT : 0u),
					     .data.ptr = w };
		epoll_ctl(poll_fd, EPOLL_CTL_MOD, w->fd, &event);
		w->wants_output = wants;
	}
	return 0;
}

static int retry_delayed(struct load *load, int poll_fd)
{
	int64_t now = now_ns();
	for (unsigned i = 0; i < load->opt->writers; i++) {
		struct writer *w = &load->writers[i];
		bool any = false;
		for (unsigned k = 0; k <= load->opt->depth; k++)
			if (w->slots[k].state == SLOT_DELAYED && w->slots[k].retry_ns <= now) {
				load->delayed--;
				enqueue(load, w, k);
				any = true;
			}
		if (any && flush(load, w, poll_fd))
			return -1;
	}
	return 0;
}

int load_run(struct load *load)
{
	const struct options *opt = load->opt;
	struct epoll_event events[64];
	int poll_fd = epoll_create1(EPOLL_CLOEXEC), rc = 0;
	load->running = opt->writers;
	load->start_ns = load->last_reply_ns = now_ns();
	for (unsigned i = 0; i < opt->writers; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &load->writers[i] };
		epoll_ctl(poll_fd, EPOLL_CTL_ADD, load->writers[i].fd, &event);
	}
	for (unsigned i = 0; i < opt->writers && !rc; i++) {
		issue(load, &load->writers[i], now_ns());
		rc = flush(load, &load->writers[i], poll_fd);
	}
	while (load->running && !rc) {
		int n = epoll_wait(poll_fd, events, 64,
				   load->delayed ? JUKEBOX_DELAY_NS / 2000000 : 1000);
		if (n < 0 && errno != EINTR)
			rc = fail(load, load->writers, "epoll_wait: %s", strerror(errno));
		for (int i = 0; i < n && !rc; i++) {
			struct writer *w = events[i].data.ptr;
			if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				rc = receive(load, w);
			if (!rc)
				rc = flush(load, w, poll_fd);
		}
		if (load->delayed && !rc)
			rc = retry_delayed(load, poll_fd);
		if (!rc && now_ns() - load->last_reply_ns > (int64_t)(opt->stall_seconds * 1e9))
			rc = fail(load, load->writers, "no reply from the server for %.0f s",
				  opt->stall_seconds);
	}
	close(poll_fd);
	return rc;
}
