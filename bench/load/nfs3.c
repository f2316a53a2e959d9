/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * nfs3.c: the encoding behind nfs3.h. XDR is four-byte big-endian words and byte strings padded to
 * four, so a cursor with put and get of those is all the machinery there is; every get is checked
 * against the end of the reply.
 */
#include "nfs3.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PROG_NFS = 100003, PROG_MOUNT = 100005 };
enum {
	PROC_LOOKUP = 3,
	PROC_READ = 6,
	PROC_WRITE = 7,
	PROC_CREATE = 8,
	PROC_FSINFO = 19,
	PROC_COMMIT = 21
};
enum { PROC_MNT = 1 };

static char error_text[256];

const char *nfs3_error(void)
{
	return error_text;
}

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(error_text, sizeof error_text, format, args);
	va_end(args);
	return -1;
}

/* ---- encoding ---- */

struct out {
	unsigned char *start, *at;
};

static void put32(struct out *o, uint32_t value)
{
	value = htobe32(value);
	memcpy(o->at, &value, 4);
	o->at += 4;
}

static void put64(struct out *o, uint64_t value)
{
	value = htobe64(value);
	memcpy(o->at, &value, 8);
	o->at += 8;
}

static void put_bytes(struct out *o, const void *data, uint32_t len)
{
	put32(o, len);
	memcpy(o->at, data, len);
	memset(o->at + len, 0, -len & 3);
	o->at += (len + 3) & ~3u;
}

static struct out begin_call(unsigned char *buf, uint32_t xid, uint32_t program, uint32_t procedure)
{
	struct out o = { buf, buf + 4 }; /* the record mark is filled in at the end */
	put32(&o, xid);
	put32(&o, 0); /* CALL */
	put32(&o, 2); /* RPC version */
	put32(&o, program);
	put32(&o, 3);
	put32(&o, procedure);
	put32(&o, 1); /* AUTH_SYS: stamp, machine name "load", uid 0, gid 0, no further groups */
	put32(&o, 24);
	put32(&o, 0);
	put_bytes(&o, "load", 4);
	put32(&o, 0);
	put32(&o, 0);
	put32(&o, 0);
	put32(&o, 0); /* verifier AUTH_NONE, empty */
	put32(&o, 0);
	return o;
}

static size_t end_call(struct out *o, uint32_t payload)
{
	size_t len = (size_t)(o->at - o->start);
	uint32_t mark = htobe32(0x80000000u | (uint32_t)(len - 4 + payload));
	memcpy(o->start, &mark, 4);
	return len;
}

size_t nfs3_put_write(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		      uint32_t count, enum nfs3_stable stable)
{
	struct out o = begin_call(buf, xid, PROG_NFS, PROC_WRITE);
	put_bytes(&o, fh->data, fh->len);
	put64(&o, offset);
	put32(&o, count);
	put32(&o, stable);
	put32(&o, count);
	return end_call(&o, count);
}

size_t nfs3_put_read(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		     uint32_t count)
{
	struct out o = begin_call(buf, xid, PROG_NFS, PROC_READ);
	put_bytes(&o, fh->data, fh->len);
	put64(&o, offset);
	put32(&o, count);
	return end_call(&o, 0);
}

size_t nfs3_put_commit(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		       uint32_t count)
{
	struct out o = begin_call(buf, xid, PROG_NFS, PROC_COMMIT);
	put_bytes(&o, fh->data, fh->len);
	put64(&o, offset);
	put32(&o, count);
	return end_call(&o, 0);
}

/* ---- decoding ---- */

struct in {
	const unsigned char *at, *end;
	bool bad; /* sticky: a short reply reads as zeros and is refused at the end */
};

static uint32_t get32(struct in *i)
{
	uint32_t value;
	if (i->end - i->at < 4) {
		i->bad = true;
		return 0;
	}
	memcpy(&value, i->at, 4);
	i->at += 4;
	return be32toh(value);
}

static void skip(struct in *i, size_t len)
{
	len = (len + 3) & ~(size_t)3;
	if ((size_t)(i->end - i->at) < len)
		i->bad = true;
	else
		i->at += len;
}

static void skip_attributes(struct in *i)
{
	if (get32(i))
		skip(i, 84);
}

static void skip_wcc(struct in *i)
{
	if (get32(i))
		skip(i, 24);
	skip_attributes(i);
}

static void get_fh(struct in *i, struct nfs3_fh *fh)
{
	uint32_t len = get32(i);
	if (len > NFS3_FH_MAX || (size_t)(i->end - i->at) < len) {
		i->bad = true;
		return;
	}
	fh->len = len;
	memcpy(fh->data, i->at, len);
	skip(i, len);
}

/* The RPC reply header up to the procedure's results. */
static bool begin_reply(struct in *i, uint32_t *xid)
{
	*xid = get32(i);
	if (get32(i) != 1 || get32(i) != 0) /* REPLY, MSG_ACCEPTED */
		return false;
	get32(i); /* verifier flavour, body */
	skip(i, get32(i));
	return get32(i) == 0 && !i->bad; /* SUCCESS */
}

static uint64_t get_verifier(struct in *i)
{
	uint64_t high = get32(i);
	return high << 32 | get32(i);
}

bool nfs3_parse_write(const unsigned char *buf, size_t len, struct nfs3_reply *out)
{
	struct in i = { buf, buf + len, false };
	memset(out, 0, sizeof *out);
	if (!begin_reply(&i, &out->xid)) {
		out->status = UINT32_MAX;
		return !i.bad;
	}
	out->status = get32(&i);
	skip_wcc(&i);
	if (out->status == NFS3_OK) {
		out->count = get32(&i);
		get32(&i); /* committed: a server may do more than was asked for */
		out->verifier = get_verifier(&i);
	}
	return !i.bad;
}

bool nfs3_parse_read(const unsigned char *buf, size_t len, struct nfs3_reply *out)
{
	struct in i = { buf, buf + len, false };
	memset(out, 0, sizeof *out);
	if (!begin_reply(&i, &out->xid)) {
		out->status = UINT32_MAX;
		return !i.bad;
	}
	out->status = get32(&i);
	skip_attributes(&i);
	if (out->status == NFS3_OK) {
		get32(&i); /* count, EOF: the length of the data says as much */
		get32(&i);
		out->count = get32(&i);
		skip(&i, out->count);
	}
	return !i.bad;
}

bool nfs3_parse_commit(const unsigned char *buf, size_t len, struct nfs3_reply *out)
{
	struct in i = { buf, buf + len, false };
	memset(out, 0, sizeof *out);
	if (!begin_reply(&i, &out->xid)) {
		out->status = UINT32_MAX;
		return !i.bad;
	}
	out->status = get32(&i);
	skip_wcc(&i);
	if (out->status == NFS3_OK)
		out->verifier = get_verifier(&i);
	return !i.bad;
}

/* ---- synchronous calls ---- */

int nfs3_connect(const struct nfs3_server *server, uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in from = { .sin_family = AF_INET };
	int one = 1;
	if (inet_pton(AF_INET, server->host, &to.sin_addr) != 1)
		return fail("%s is not an IPv4 address", server->host);
	if (server->source && inet_pton(AF_INET, server->source, &from.sin_addr) != 1)
		return fail("%s is not an IPv4 address", server->source);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail("socket: %s", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if ((server->source && bind(fd, (struct sockaddr *)&from, sizeof from)) ||
	    connect(fd, (struct sockaddr *)&to, sizeof to)) {
		fail("connect to %s:%u: %s", server->host, port, strerror(errno));
		close(fd);
		return -1;
	}
	return fd;
}

static int send_all(int fd, const unsigned char *data, size_t len)
{
	while (len) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail("send: %s", strerror(errno));
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static int receive_all(int fd, unsigned char *data, size_t len)
{
	while (len) {
		ssize_t n = recv(fd, data, len, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail("recv: %s", strerror(errno));
		if (n == 0)
			return fail("the server closed the connection");
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Sends the call and leaves its results (after the RPC header) in i, which points into buf. */
static int call(int fd, struct out *o, unsigned char *buf, size_t size, struct in *i)
{
	unsigned char mark[4];
	uint32_t len = 0, xid;
	if (send_all(fd, o->start, end_call(o, 0)))
		return -1;
	for (bool last = false; !last;) { /* a reply may come in several fragments */
		uint32_t word;
		if (receive_all(fd, mark, 4))
			return -1;
		memcpy(&word, mark, 4);
		word = be32toh(word);
		last = word >> 31;
		word &= 0x7fffffff;
		if (word > size - len)
			return fail("a reply of %u bytes is larger than expected", word);
		if (receive_all(fd, buf + len, word))
			return -1;
		len += word;
	}
	*i = (struct in){ buf, buf + len, false };
	return begin_reply(i, &xid) ? 0 : fail("the server refused the RPC");
}

static int check(struct in *i, uint32_t status, const char *what)
{
	if (status)
		return fail("%s: the server answers status %u", what, status);
	return i->bad ? fail("%s: the reply is too short", what) : 0;
}

int nfs3_mount(const struct nfs3_server *server, const char *path, struct nfs3_fh *root)
{
	unsigned char request[NFS3_HEADER_MAX + 1024], reply[NFS3_REPLY_MAX];
	struct in i;
	if (strlen(path) > 1024)
		return fail("the export's path is too long");
	int fd = nfs3_connect(server, server->mount_port);
	if (fd < 0)
		return -1;
	struct out o = begin_call(request, 1, PROG_MOUNT, PROC_MNT);
	put_bytes(&o, path, (uint32_t)strlen(path));
	int rc = call(fd, &o, reply, sizeof reply, &i);
	close(fd);
	if (rc)
		return -1;
	uint32_t status = get32(&i);
	if (!status)
		get_fh(&i, root);
	return check(&i, status, "MNT");
}

int nfs3_write_max(int fd, const struct nfs3_fh *root, uint32_t *bytes)
{
	unsigned char request[NFS3_HEADER_MAX], reply[NFS3_REPLY_MAX];
	struct in i;
	struct out o = begin_call(request, 2, PROG_NFS, PROC_FSINFO);
	put_bytes(&o, root->data, root->len);
	if (call(fd, &o, reply, sizeof reply, &i))
		return -1;
	uint32_t status = get32(&i);
	skip_attributes(&i);
	skip(&i, 12); /* rtmax, rtpref, rtmult */
	*bytes = get32(&i);
	return check(&i, status, "FSINFO");
}

static int lookup(int fd, const struct nfs3_fh *dir, const char *name, struct nfs3_fh *fh)
{
	unsigned char request[NFS3_HEADER_MAX + 256], reply[NFS3_REPLY_MAX];
	struct in i;
	struct out o = begin_call(request, 3, PROG_NFS, PROC_LOOKUP);
	put_bytes(&o, dir->data, dir->len);
	put_bytes(&o, name, (uint32_t)strlen(name));
	if (call(fd, &o, reply, sizeof reply, &i))
		return -1;
	uint32_t status = get32(&i);
	if (!status)
		get_fh(&i, fh);
	return check(&i, status, "LOOKUP");
}

int nfs3_create(int fd, const struct nfs3_fh *dir, const char *name, bool truncate,
		struct nfs3_fh *fh)
{
	unsigned char request[NFS3_HEADER_MAX + 256], reply[NFS3_REPLY_MAX];
	struct in i;
	if (strlen(name) > 255)
		return fail("the file's name is too long");
	struct out o = begin_call(request, 4, PROG_NFS, PROC_CREATE);
	put_bytes(&o, dir->data, dir->len);
	put_bytes(&o, name, (uint32_t)strlen(name));
	put32(&o, 0); /* UNCHECKED */
	put32(&o, 1); /* mode */
	put32(&o, 0644);
	put32(&o, 0); /* uid, gid */
	put32(&o, 0);
	put32(&o, truncate); /* size */
	if (truncate)
		put64(&o, 0);
	put32(&o, 0); /* atime, mtime */
	put32(&o, 0);
	if (call(fd, &o, reply, sizeof reply, &i))
		return -1;
	uint32_t status = get32(&i);
	if (status)
		return check(&i, status, "CREATE");
	if (!get32(&i)) /* the handle is optional in CREATE's reply */
		return lookup(fd, dir, name, fh);
	get_fh(&i, fh);
	return check(&i, status, "CREATE");
}

int nfs3_read(int fd, const struct nfs3_fh *fh, uint64_t offset, uint32_t count,
	      unsigned char *data, uint32_t *got)
{
	unsigned char request[NFS3_HEADER_MAX];
	size_t size = (size_t)count + NFS3_REPLY_MAX;
	unsigned char *reply = malloc(size);
	struct in i;
	if (!reply)
		return fail("out of memory");
	struct out o = begin_call(request, 5, PROG_NFS, PROC_READ);
	put_bytes(&o, fh->data, fh->len);
	put64(&o, offset);
	put32(&o, count);
	int rc = call(fd, &o, reply, size, &i);
	if (!rc) {
		uint32_t status = get32(&i);
		skip_attributes(&i);
		if (!status) {
			get32(&i); /* count, EOF: the length of the data says as much */
			get32(&i);
			*got = get32(&i);
			if (*got <= count && (size_t)(i.end - i.at) >= *got)
				memcpy(data, i.at, *got);
			else
				i.bad = true;
		}
		rc = check(&i, status, "READ");
	}
	free(reply);
	return rc;
}
