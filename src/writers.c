/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * One writer in a file at a time, and nobody waiting outside.
 *
 * The file system serialises writes to one inode. Threads that arrive meanwhile spin and sleep on its
 * lock, on CPUs that should be receiving the next request: 16 writes in flight on one file were no
 * faster than one. So who comes while somebody is in leaves his write behind and goes; who is in
 * carries it out (the idea of flat combining, Hendler et al., 2010).
 *
 * Who is in holds a reference to the file, since the requests he completes may be all that kept it.
 */
#include "internal.h"

/* An executor serves a file this long before it lets others have a turn. */
#define SERVANT_BATCH 64

bool dc_file_enter(struct dc_file *file)
{
	bool in;

	pthread_mutex_lock(&file->writers_lock);
	in = !file->writing;
	file->writing = true;
	pthread_mutex_unlock(&file->writers_lock);
	if (in)
		dc_file_hold(file);
	return in;
}

bool dc_file_enqueue(struct dc_file *file, struct dc_queued *q)
{
	bool queued;

	q->next = NULL;
	pthread_mutex_lock(&file->writers_lock);
	queued = file->writing;
	file->writing = true;
	if (queued) {
		*file->queued_last = q;
		file->queued_last = &q->next;
	}
	pthread_mutex_unlock(&file->writers_lock);
	if (!queued)
		dc_file_hold(file);
	return queued;
}

static void serve(struct dc_waiter *w, int status)
{
	(void)status;
	dc_file_leave(container_of_dc(w, struct dc_file, servant), SERVANT_BATCH);
}

void dc_file_leave(struct dc_file *file, unsigned int batch)
{
	struct dc_executor *exec = file->exp->dev->exec;

	for (;;) {
		struct dc_queued *q;

		pthread_mutex_lock(&file->writers_lock);
		dc_assert(file->writing);
		q = file->queued;
		if (!q) {
			file->writing = false;
			pthread_mutex_unlock(&file->writers_lock);
			dc_file_put(file);
			return;
		}
		if (batch == 0 && exec) {
			pthread_mutex_unlock(&file->writers_lock);
			file->servant.exp = file->exp;
			file->servant.run = serve;
			file->servant.resume = false;
			file->servant.next = NULL;
			dc_executor_run(exec, &file->servant);
			return;
		}
		file->queued = q->next;
		if (!file->queued)
			file->queued_last = &file->queued;
		pthread_mutex_unlock(&file->writers_lock);
		dc_count(file->exp, DC_CTR_COMBINED, 1);
		q->run(q);
		if (batch > 0)
			batch--;
	}
}
