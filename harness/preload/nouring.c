/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Preload for ganesha.nfsd: io_uring is refused with EPERM, as where kernel.io_uring_disabled is 2 or
 * a container's seccomp profile forbids it.
 *
 * A filter in the kernel rather than a wrapper of the library's function, since liburing calls the
 * kernel by itself, and our plugin is linked so that nothing preloaded gets in between.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void __attribute__((constructor)) refuse_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	/* Root may install a filter without this; it would stop set-uid programs, which a server
	 * does not start. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		/* A test that goes on with io_uring would prove nothing. */
		perror("nouring: seccomp");
		abort();
	}
}
