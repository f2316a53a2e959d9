/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * All of Ganesha that the plugin sees, and the proof that it is the Ganesha it will meet.
 *
 * Headers come from the source of exactly the installed version (scripts/setup.sh); the sizes
 * below were read off Debian's binaries. If one differs, the plugin would corrupt memory: better
 * not to build.
 */
#ifndef DCF_COMPAT_H
#define DCF_COMPAT_H

#include "config.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsal.h"
#include "fsal_types.h"
#include "fsal_convert.h"
#include "fsal_up.h"
#include "FSAL/fsal_commonlib.h"
#include "FSAL/fsal_config.h"
#include "FSAL/fsal_init.h"
#include "FSAL/fsal_localfs.h"
#include "config_parsing.h"
#include "export_mgr.h"
#include "nfs_core.h"
#include "nfs_exports.h"
#include "nfs_proto_data.h"
#include "nfs_proto_functions.h"
/* The parse tree, for the line a value stands in. */
#include "../config_parsing/analyse.h"

#if FSAL_MAJOR_VERSION != 11
#error "this source is for Ganesha 4.x (FSAL API 11)"
#endif

#if defined(__x86_64__)
_Static_assert(sizeof(struct fsal_module) + sizeof(struct fsal_obj_ops) == 0x308,
	       "not the layout of Debian's nfs-ganesha 4.3");
_Static_assert(sizeof(struct state_t) == 0xd8, "not the layout of Debian's nfs-ganesha 4.3");
#endif

#endif
