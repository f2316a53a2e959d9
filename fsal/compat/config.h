/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Ganesha's headers include "config.h", which its own build generates. This one says what
 * Debian 12's nfs-ganesha 4.3 was built with, as far as those headers depend on it; compat.h checks
 * the sizes that follow.
 */
#ifndef DCF_GANESHA_CONFIG_H
#define DCF_GANESHA_CONFIG_H

#define GANESHA_VERSION "4.3"
#define VERSION GANESHA_VERSION
#define LINUX 1
#define LITTLEEND 1
#define HAVE_STRING_H 1
#define HAVE_STRNLEN 1
#define HAVE_DAEMON 1
#define USE_DBUS 1
#define USE_NFSIDMAP 1
#define _USE_9P 1
#define _USE_NFS3 1
#define _USE_NLM 1
#define _USE_RQUOTA 1
#define USE_NFSACL3 1
#define _HAVE_GSSAPI 1
#define HAVE_KRB5 1
#define _MSPAC_SUPPORT 1
#define USE_CAPS 1
#define USE_BLKID 1
#define RPCBIND 1
#define GSH_CAN_HOST_LOCAL_FS 1
#define HAVE_URCU_REF_GET_UNLESS_ZERO 1
#define NFS_GANESHA 1
#define _LGPL_SOURCE 1

#endif
