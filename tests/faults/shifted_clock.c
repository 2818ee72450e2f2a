/* A wall clock of a process's own: loaded before libc (LD_PRELOAD), it adds to the time of day what
 * the file SHIFTED_CLOCK holds (8 bytes: nanoseconds), mapped, so that a change is seen at once.
 *
 * Deadlines by the wall clock go with it, as they would with the machine's own; the monotonic clock
 * stays as it is. A deadline of less than 1e9 s is one of the monotonic clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;
static int (*timed)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*timed_c11)(cnd_t *, mtx_t *, const struct timespec *);
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (found != MAP_FAILED) shift = found;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    timed_c11 = dlsym(RTLD_NEXT, "cnd_timedwait");
    timed = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
}

static struct timespec moved(struct timespec at, int64_t by) {
    int64_t ns = at.tv_nsec + by % 1000000000;
    at.tv_sec += by / 1000000000 + (ns >= 1000000000) - (ns < 0);
    at.tv_nsec = ns + (ns < 0 ? 1000000000 : ns >= 1000000000 ? -1000000000 : 0);
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *now = moved(*now, *shift);
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec at = {0};
    clock_gettime(CLOCK_REALTIME, &at);
    if (kept) *kept = at.tv_sec;
    return at.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *until) {
    struct timespec at = *until;
    if (shift && at.tv_sec > 1000000000) at = moved(at, -*shift);
    return timed(cond, mutex, &at);
}

/* What librdkafka waits by. */
int cnd_timedwait(cnd_t *cond, mtx_t *mutex, const struct timespec *until) {
    struct timespec at = *until;
    if (shift) at = moved(at, -*shift);
    return timed_c11(cond, mutex, &at);
}
