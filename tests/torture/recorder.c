/* Records what a program does to the files below one folder, and makes chosen calls fail.
 *
 * Loaded with LD_PRELOAD. RECORD_ROOT names the folder, RECORD_TRACE the file the record goes to. One lock is held over
 * each call and its record, so that the record has the order in which things happened. A program speaks to it through
 * recorder_mark (a line of its own in the record) and recorder_arm (the N-th call of some kinds fails from now on).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CLOSE, WRITE, SYNC, TRUNCATE, ALLOCATE, RENAME, UNLINK, MKDIR, RMDIR, MAP, MARK, FAILED_SYNC, LINK };
enum { FAIL_WRITE = 1, FAIL_SYNC = 2, FAIL_OPEN = 4, FAIL_RENAME = 8, FAIL_MAP = 16, FAIL_TRUNCATE = 32 };

struct head { uint8_t op; uint8_t flag; uint16_t spare; int32_t fd; int64_t a; int64_t b; uint32_t one; uint32_t two; };

#define FDS 65536
static unsigned char tracked[FDS]; /* 1: below the root; 2: and every write is synced (O_DSYNC) */
static char root[PATH_MAX];
static size_t root_bytes;
static int trace = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, failing;
static int kinds, failure, repeats;

#define REAL(name) ({ static __typeof__(&name) real_; if (!real_) real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real_; })

static void put(int op, int flag, int fd, int64_t a, int64_t b, const void *one, size_t one_bytes, const void *two, size_t two_bytes)
{
    if (trace < 0) return;
    struct head head = { op, flag, 0, fd, a, b, one_bytes, two_bytes };
    struct iovec parts[3] = { { &head, sizeof head }, { (void *)one, one_bytes }, { (void *)two, two_bytes } };
    size_t wanted = sizeof head + one_bytes + two_bytes;
    if (syscall(SYS_writev, trace, parts, 3) != (ssize_t)wanted) abort();
}

__attribute__((constructor)) static void start(void)
{
    const char *folder = getenv("RECORD_ROOT"), *file = getenv("RECORD_TRACE");
    if (!folder || !file || !realpath(folder, root)) return;
    root_bytes = strlen(root);
    trace = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* A forked child has the parent's trace no more: only one process is recorded. */
static void forked(void) { trace = -1; root_bytes = 0; pthread_mutex_init(&lock, NULL); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

void recorder_mark(const char *data, long bytes)
{
    pthread_mutex_lock(&lock);
    put(MARK, 0, -1, 0, 0, data, bytes, NULL, 0);
    pthread_mutex_unlock(&lock);
}

/* The `at`-th call of these kinds from now on fails with `error`, and `more` calls after it (-1: all). */
void recorder_arm(int which, long at, int error, int more)
{
    pthread_mutex_lock(&lock);
    calls = 0; kinds = which; failing = at; failure = error; repeats = more;
    pthread_mutex_unlock(&lock);
}

long recorder_calls(void) { return calls; }

static int fails(int kind)
{
    if (!(kinds & kind)) return 0;
    calls++;
    if (!failing || calls < failing || (repeats >= 0 && calls > failing + repeats)) return 0;
    errno = failure;
    return 1;
}

/* The absolute path of a name, below the root or not. */
static int place(int at, const char *name, char *out)
{
    char folder[PATH_MAX];
    if (!root_bytes || !name) return 0;
    if (name[0] == '/') {
        snprintf(out, PATH_MAX, "%s", name);
    } else {
        if (at == AT_FDCWD) {
            if (!getcwd(folder, sizeof folder)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t got = readlink(link, folder, sizeof folder - 1);
            if (got < 0) return 0;
            folder[got] = 0;
        }
        if (snprintf(out, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) return 0;
    }
    return !strncmp(out, root, root_bytes) && (out[root_bytes] == '/' || out[root_bytes] == 0);
}

static int known(int fd) { return fd >= 0 && fd < FDS && tracked[fd]; }

/* ── opening ── */
static int do_open(int at, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (!place(at, name, path)) {
        int fd = syscall(SYS_openat, at, name, flags, mode);
        if (fd >= 0 && fd < FDS) tracked[fd] = 0;
        return fd;
    }
    pthread_mutex_lock(&lock);
    int fd = -1;
    if (!fails(FAIL_OPEN)) {
        int existed = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
        fd = syscall(SYS_openat, at, name, flags, mode);
        if (fd >= 0 && fd < FDS && !(flags & O_PATH)) {
            tracked[fd] = flags & O_DSYNC ? 2 : 1;
            put(OPEN, existed, fd, flags, 0, path, strlen(path), NULL, 0);
        }
    }
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *name, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, name, flags | O_LARGEFILE, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return do_open(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return do_open(at, name, flags | O_LARGEFILE, mode); }
int creat(const char *name, mode_t mode) { return do_open(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return do_open(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd)
{
    if (known(fd)) {
        pthread_mutex_lock(&lock);
        tracked[fd] = 0;
        put(CLOSE, 0, fd, 0, 0, NULL, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return syscall(SYS_close, fd);
}

/* ── writing ── */
static ssize_t do_write(int fd, const void *data, size_t bytes, int64_t offset, int placed)
{
    if (!known(fd)) return placed ? syscall(SYS_pwrite64, fd, data, bytes, offset) : syscall(SYS_write, fd, data, bytes);
    pthread_mutex_lock(&lock);
    ssize_t done = -1;
    if (!fails(FAIL_WRITE)) {
        int64_t at = offset;
        int appending = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
        if (!placed && !appending) at = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        if (!placed && appending) at = syscall(SYS_lseek, fd, 0, SEEK_END);
        done = placed ? syscall(SYS_pwrite64, fd, data, bytes, offset) : syscall(SYS_write, fd, data, bytes);
        if (done > 0) put(WRITE, tracked[fd] == 2, fd, at, done, data, done, NULL, 0);
    }
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

ssize_t write(int fd, const void *data, size_t bytes) { return do_write(fd, data, bytes, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) { return do_write(fd, data, bytes, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) { return do_write(fd, data, bytes, offset, 1); }

static ssize_t do_writev(int fd, const struct iovec *parts, int count, int64_t offset, int placed)
{
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        if (!parts[i].iov_len) continue;
        ssize_t done = do_write(fd, parts[i].iov_base, parts[i].iov_len, offset + total, placed);
        if (done < 0) return total ? total : -1;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return known(fd) ? do_writev(fd, parts, count, 0, 0) : syscall(SYS_writev, fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return do_writev(fd, parts, count, offset, 1); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return do_writev(fd, parts, count, offset, 1); }

/* Copies inside the kernel are made outside it, where they can be seen. */
ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
    if (!known(out)) return syscall(SYS_sendfile, out, in, offset, count);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, (off_t *)offset, count); }
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags)
{
    if (!known(out)) return syscall(SYS_copy_file_range, in, from, out, to, count, flags);
    errno = EXDEV;
    return -1;
}

/* ── syncing ── */
static int do_sync(int fd, int call)
{
    if (!known(fd)) return syscall(call, fd);
    pthread_mutex_lock(&lock);
    int result = -1;
    if (fails(FAIL_SYNC)) {
        put(FAILED_SYNC, 0, fd, 0, 0, NULL, 0, NULL, 0);
    } else {
        result = 0; /* the disk of this test is the model, which needs no platter to turn */
        put(SYNC, 0, fd, 0, 0, NULL, 0, NULL, 0);
    }
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}

int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }

/* ── sizes ── */
static int do_truncate(int fd, int64_t bytes)
{
    if (!known(fd)) return syscall(SYS_ftruncate, fd, bytes);
    pthread_mutex_lock(&lock);
    int result = -1;
    if (!fails(FAIL_TRUNCATE) && (result = syscall(SYS_ftruncate, fd, bytes)) == 0)
        put(TRUNCATE, 0, fd, bytes, 0, NULL, 0, NULL, 0);
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}

int ftruncate(int fd, off_t bytes) { return do_truncate(fd, bytes); }
int ftruncate64(int fd, off64_t bytes) { return do_truncate(fd, bytes); }

static int do_allocate(int fd, int mode, int64_t offset, int64_t bytes)
{
    pthread_mutex_lock(&lock);
    int result = -1;
    if (!fails(FAIL_TRUNCATE) && (result = syscall(SYS_fallocate, fd, mode, offset, bytes)) == 0 && known(fd))
        put(ALLOCATE, mode != 0, fd, offset, bytes, NULL, 0, NULL, 0);
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) { return do_allocate(fd, mode, offset, bytes); }
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) { return do_allocate(fd, mode, offset, bytes); }
int posix_fallocate(int fd, off_t offset, off_t bytes) { return do_allocate(fd, 0, offset, bytes) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) { return do_allocate(fd, 0, offset, bytes) ? errno : 0; }

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    int shared = fd >= 0 && known(fd) && flags & MAP_SHARED && protection & PROT_WRITE;
    if (!shared) return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
    pthread_mutex_lock(&lock);
    void *result = MAP_FAILED;
    if (!fails(FAIL_MAP)) {
        result = (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
        if (result != MAP_FAILED) put(MAP, 0, fd, 0, 0, NULL, 0, NULL, 0);
    }
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}
void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t offset) { return mmap(address, bytes, protection, flags, fd, offset); }

/* ── names ── */
static int do_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    if (!place(from_at, from, old) || !place(to_at, to, new)) return syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    pthread_mutex_lock(&lock);
    int result = -1;
    if (!fails(FAIL_RENAME) && (result = syscall(SYS_renameat2, from_at, from, to_at, to, flags)) == 0)
        put(RENAME, 0, -1, 0, 0, old, strlen(old), new, strlen(new));
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}
int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char *from, int to_at, const char *to) { return do_rename(from_at, from, to_at, to, 0); }
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) { return do_rename(from_at, from, to_at, to, flags); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    int ours = place(from_at, from, old) && place(to_at, to, new);
    pthread_mutex_lock(&lock);
    int result = -1;
    if ((!ours || !fails(FAIL_RENAME)) && (result = syscall(SYS_linkat, from_at, from, to_at, to, flags)) == 0 && ours)
        put(LINK, 0, -1, 0, 0, old, strlen(old), new, strlen(new));
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int do_unlink(int at, const char *name, int flags)
{
    char path[PATH_MAX];
    int ours = place(at, name, path);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_unlinkat, at, name, flags);
    if (!result && ours) put(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, -1, 0, 0, path, strlen(path), NULL, 0);
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}
int unlink(const char *name) { return do_unlink(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return do_unlink(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int at, const char *name, int flags) { return do_unlink(at, name, flags); }
int remove(const char *name)
{
    int result = do_unlink(AT_FDCWD, name, 0);
    return result && errno == EISDIR ? do_unlink(AT_FDCWD, name, AT_REMOVEDIR) : result;
}

int mkdirat(int at, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    int ours = place(at, name, path);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_mkdirat, at, name, mode);
    if (!result && ours) put(MKDIR, 0, -1, 0, 0, path, strlen(path), NULL, 0);
    int saved = errno;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return result;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
