/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * nfs3.h: as much of NFSv3 over TCP as a load generator needs, encoded by hand.
 *
 * A generator that shares two cores with the server it measures must cost little. A library client
 * copies each payload into a request of its own; here a call is a small header that goes out in
 * front of bytes that are never touched (sendmsg), and a reply is parsed where it lies.
 */
#ifndef BENCH_LOAD_NFS3_H
#define BENCH_LOAD_NFS3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Record mark, RPC call, AUTH_SYS and the arguments of a WRITE are about 200 bytes. */
#define NFS3_HEADER_MAX 512
#define NFS3_FH_MAX 64
/* Replies to WRITE and COMMIT are under 200 bytes; those to READ so much and the data. */
#define NFS3_REPLY_MAX 4096

enum nfs3_stable { NFS3_UNSTABLE, NFS3_DATA_SYNC, NFS3_FILE_SYNC };

#define NFS3_OK 0
#define NFS3ERR_JUKEBOX 10008

struct nfs3_fh {
	uint32_t len;
	unsigned char data[NFS3_FH_MAX];
};

struct nfs3_server {
	const char *host; /* dotted IPv4 */
	uint16_t port;
	uint16_t mount_port;
	const char *source; /* address to bind to, or NULL */
};

/* What the reply of a WRITE, a COMMIT or a READ says. */
struct nfs3_reply {
	uint32_t xid;
	uint32_t status; /* nfsstat3; UINT32_MAX where the RPC layer itself refused the call */
	uint32_t count;
	uint64_t verifier;
};

/* Headers of asynchronous calls, written to buf (NFS3_HEADER_MAX bytes); the payload of a WRITE
 * follows on the wire. They return the header's length. */
size_t nfs3_put_write(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		      uint32_t count, enum nfs3_stable stable);
size_t nfs3_put_read(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		     uint32_t count);
/* Count 0: to the end of the file. */
size_t nfs3_put_commit(unsigned char *buf, uint32_t xid, const struct nfs3_fh *fh, uint64_t offset,
		       uint32_t count);

/* Parses one reply (without its record mark). False where it cannot be understood. */
bool nfs3_parse_write(const unsigned char *buf, size_t len, struct nfs3_reply *out);
bool nfs3_parse_commit(const unsigned char *buf, size_t len, struct nfs3_reply *out);
bool nfs3_parse_read(const unsigned char *buf, size_t len, struct nfs3_reply *out);

/* Synchronous part, for set-up and verification. Each returns 0 or -1; nfs3_error() then says
 * what went wrong. */
const char *nfs3_error(void);
int nfs3_connect(const struct nfs3_server *server, uint16_t port); /* a blocking socket, or -1 */
int nfs3_mount(const struct nfs3_server *server, const char *path, struct nfs3_fh *root);
int nfs3_write_max(int fd, const struct nfs3_fh *root, uint32_t *bytes);
/* Opens dir/name, made where it is missing; truncated where asked. */
int nfs3_create(int fd, const struct nfs3_fh *dir, const char *name, bool truncate,
		struct nfs3_fh *out);
int nfs3_read(int fd, const struct nfs3_fh *fh, uint64_t offset, uint32_t count,
	      unsigned char *data, uint32_t *got);

#endif
