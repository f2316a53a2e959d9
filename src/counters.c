/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Names, units and help of the counters: see counters.h. */
#include "dontcache/counters.h"

const struct dc_counter_info dc_counter_info[DC_NR_COUNTERS] = {
#define X(id, name, unit, help) { name, unit, help },
	DC_COUNTERS(X)
#undef X
};
