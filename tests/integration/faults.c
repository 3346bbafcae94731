/* Preloaded into a broker: as long as the file that FAULTS names begins with "sync" or "write", every sync, or every write to the
   commit log, fails with the error whose number follows, as a device with a defect has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static int fault(const char *kind) {
    char text[64] = {0}, found[16];
    int number = 0, file = open(getenv("FAULTS"), O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) > 0 && sscanf(text, "%15s %d", found, &number) == 2 && strcmp(found, kind)) number = 0;
    close(file);
    return number;
}

static int is_log(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, "/commitlog/") != NULL;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(number) do { int error = (number); if (error) { errno = error; return -1; } } while (0)

int fsync(int fd) { FAIL_IF(fault("sync")); return NEXT(fsync)(fd); }
int fdatasync(int fd) { FAIL_IF(fault("sync")); return NEXT(fdatasync)(fd); }
int msync(void *start, size_t size, int flags) { FAIL_IF(fault("sync")); return NEXT(msync)(start, size, flags); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    FAIL_IF(is_log(fd) ? fault("write") : 0);
    return NEXT(pwrite64)(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    FAIL_IF(is_log(fd) ? fault("write") : 0);
    return NEXT(pwrite)(fd, data, size, at);
}
