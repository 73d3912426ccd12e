/* A disk and a clock that fail on demand, for benchmarks/chaos.py: preloaded into every process of a run.

   CHAOS_CONTROL names a file of three 64-bit integers, which is mapped: whether the disk is full, the milliseconds that
   it takes for a file to be opened, written, flushed or renamed, the seconds by which the clock of the day is off. The
   disk is the folder CHAOS_FOLDER. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const int64_t none[3];
static volatile const int64_t *control = none;
static const char *folder = "";
static size_t length;

#define FULL (control[0])
#define SLOW (control[1])
#define SHIFT (control[2])

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("CHAOS_CONTROL"), *disk = getenv("CHAOS_FOLDER");
    if (name == NULL || disk == NULL)
        return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return;
    folder = strdup(disk);
    length = strlen(folder);
    control = mapped;
}

static int is_off(void) { return !FULL && !SLOW; }

static int lies_there(const char *path) { return path != NULL && length && strncmp(path, folder, length) == 0; }

static int is_there(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return lies_there(path);
}

static void take_time(void) {
    struct timespec left = {SLOW / 1000, SLOW % 1000 * 1000000};
    int before = errno;
    nanosleep(&left, NULL);
    errno = before;
}

/* Whether a call on the disk fails; it takes its time. */
static int fails(int there, int writes) {
    if (!there)
        return 0;
    if (SLOW)
        take_time();
    if (FULL && writes) {
        errno = ENOSPC;
        return 1;
    }
    return 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ORIGINAL(name)                                                                                                 \
    static __typeof__(&name) original;                                                                                 \
    if (original == NULL)                                                                                              \
    original = NEXT(name)

#define OF_DESCRIPTOR(type, name, parameters, arguments)                                                               \
    type name parameters {                                                                                             \
        ORIGINAL(name);                                                                                                \
        if (!is_off() && fails(is_there(descriptor), 1))                                                               \
            return -1;                                                                                                 \
        return original arguments;                                                                                     \
    }

OF_DESCRIPTOR(ssize_t, write, (int descriptor, const void *bytes, size_t count), (descriptor, bytes, count))
OF_DESCRIPTOR(ssize_t, writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count))
OF_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *bytes, size_t count, off_t at),
              (descriptor, bytes, count, at))
OF_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *bytes, size_t count, off64_t at),
              (descriptor, bytes, count, at))

int posix_fallocate(int descriptor, off_t at, off_t size) {
    ORIGINAL(posix_fallocate);
    return !is_off() && fails(is_there(descriptor), 1) ? ENOSPC : original(descriptor, at, size);
}

int fsync(int descriptor) {
    ORIGINAL(fsync);
    return !is_off() && fails(is_there(descriptor), 0) ? -1 : original(descriptor);
}

int fdatasync(int descriptor) {
    ORIGINAL(fdatasync);
    return !is_off() && fails(is_there(descriptor), 0) ? -1 : original(descriptor);
}

int rename(const char *from, const char *to) {
    ORIGINAL(rename);
    return !is_off() && fails(lies_there(to), 0) ? -1 : original(from, to);
}

int mkdir(const char *path, mode_t mode) {
    ORIGINAL(mkdir);
    return !is_off() && fails(lies_there(path), 1) ? -1 : original(path, mode);
}

#define OPENS(name)                                                                                                    \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*original)(const char *, int, ...);                                                                \
        if (original == NULL)                                                                                          \
            original = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        int mode = va_arg(rest, int);                                                                                  \
        va_end(rest);                                                                                                  \
        if (!is_off() && fails(lies_there(path), (flags & O_CREAT) && access(path, F_OK) != 0))                        \
            return -1;                                                                                                 \
        return original(path, flags, mode);                                                                            \
    }

OPENS(open)
OPENS(open64)

/* The clock of the day. Waits until an instant of it end when a clock that jumped for all would end them. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    ORIGINAL(clock_gettime);
    int result = original(clock, now);
    if (result == 0 && SHIFT && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += SHIFT;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    ORIGINAL(gettimeofday);
    int result = original(now, zone);
    if (result == 0)
        now->tv_sec += SHIFT;
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}

/* An instant of a monotonic clock, that of the time since the boot, is a small number. */
static const struct timespec *meant(const struct timespec *until, struct timespec *copy) {
    if (!SHIFT || until == NULL || until->tv_sec < 1000000000)
        return until;
    *copy = *until;
    copy->tv_sec -= SHIFT;
    return copy;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*original)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (original == NULL) {
        original = (__typeof__(original))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (original == NULL)
            original = (__typeof__(original))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    }
    struct timespec copy;
    return original(condition, mutex, meant(until, &copy));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    ORIGINAL(sem_timedwait);
    struct timespec copy;
    return original(semaphore, meant(until, &copy));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    ORIGINAL(pthread_mutex_timedlock);
    struct timespec copy;
    return original(mutex, meant(until, &copy));
}

long syscall(long number, ...) {
    static long (*original)(long, ...);
    if (original == NULL)
        original = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    struct timespec copy;
    if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME))
        d = (long)meant((const struct timespec *)d, &copy);
    return original(number, a, b, c, d, e, f);
}
