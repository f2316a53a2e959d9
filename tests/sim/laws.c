/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Other pacing laws, for comparison: docs/budgets.md tells what came of it.
 *
 *   none    no pacing: everything is let in up to the limit, the engine's behaviour before it had a law
 *   cubic   Linux: completed * (1 + ((setpoint - dirty) / (limit - setpoint))^3), 0 to 2 times
 *           (mm/page-writeback.c, pos_ratio_polynom(); task rates, which all the export's writers
 *           share here)
 *   delay   OpenZFS: a write's delay is scale * (dirty - min) / (max - dirty), with min at freerun and
 *           one queue for all writers (module/zfs/dmu_tx.c, dmu_tx_delay()); scale fixed, 500 us
 *           per 128 KiB, as its default for 2000 operations a second
 *   linear  the product's: src/pacing.c
 */
#include <math.h>
#include <string.h>

#include "sim.h"

static double cubic(const struct dc_pace_in *in)
{
	double x = (in->setpoint - in->dirty) / (in->limit - in->setpoint);
	double f = 1 + x * x * x;

	/* Something must flow before anything was measured. */
	return fmax(in->completed, in->setpoint / 10) * fmin(fmax(f, 0), 2);
}

static double delay(const struct dc_pace_in *in)
{
	double per_write = 500e-6 * (in->dirty - in->freerun) / (in->limit - in->dirty);

	if (in->dirty >= in->limit)
		return 0;
	/* Pages of one write over its delay; 100 ms at most, as zfs_delay_max_ns. */
	return 32 / fmin(fmax(per_write, 1e-6), 0.1);
}

dc_pace_law sim_law(const char *name, bool *known)
{
	*known = true;
	if (strcmp(name, "linear") == 0)
		return dc_pace_linear;
	if (strcmp(name, "cubic") == 0)
		return cubic;
	if (strcmp(name, "delay") == 0)
		return delay;
	*known = strcmp(name, "none") == 0;
	return NULL;
}
