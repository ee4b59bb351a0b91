/* PID 1 of the test machines: loads the modules, says on the control port what it sees, and does what the
   kernel's command line says in `test=`. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    reboot(RB_POWER_OFF);
}

static void read_text(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, text, size - 1);
    text[length < 0 ? 0 : length] = 0;
    text[strcspn(text, "\n")] = 0;
    close(file);
}

static void load_modules(void)
{
    struct dirent **names;
    int count = scandir("/modules", &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[300];
        if (names[i]->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/modules/%s", names[i]->d_name);
        int file = open(path, O_RDONLY);
        if (syscall(SYS_finit_module, file, "", 0) != 0)
            perror(path);
        close(file);
    }
}

/* The device `/dev/NAME` for which `/sys/class/CLASS/NAME/FILE` holds `wanted`. */
static int open_device(const char *class, const char *file, const char *wanted, int flags)
{
    char path[300], text[64];
    snprintf(path, sizeof path, "/sys/class/%s", class);
    DIR *devices = opendir(path);
    struct dirent *entry;
    while (devices && (entry = readdir(devices))) {
        snprintf(path, sizeof path, "/sys/class/%s/%.80s/%s", class, entry->d_name, file);
        read_text(path, text, sizeof text);
        if (strcmp(text, wanted) == 0) {
            snprintf(path, sizeof path, "/dev/%.80s", entry->d_name);
            return open(path, flags);
        }
    }
    return -1;
}

/* Answers one line with one line, for ever. What was asked before is in this process's memory. */
static void serve(int port)
{
    char asked[4000] = "", line[64], answer[4200], text[17];
    for (;;) {
        size_t length = 0;
        ssize_t got = 0;
        while (length < sizeof line - 1 && (got = read(port, line + length, 1)) == 1 && line[length] != '\n')
            length++;
        line[length] = 0;
        if (got != 1)
            fail("port");
        if (strncmp(line, "disk ", 5) == 0) {
            int disk = open_device("block", "serial", line + 5, O_RDONLY);
            memset(text, 0, sizeof text);
            if (pread(disk, text, 16, 0) < 0)
                strcpy(text, "unreadable");
            snprintf(answer, sizeof answer, "%s of %lld\n", text, (long long)lseek(disk, 0, SEEK_END));
            close(disk);
        } else if (strncmp(line, "write ", 6) == 0) {
            int disk = open_device("block", "serial", "scratch", O_RDWR | O_SYNC);
            pwrite(disk, line + 6, strlen(line + 6), 0);
            close(disk);
            strcpy(answer, "written\n");
        } else if (strncmp(line, "rebind ", 7) == 0) {
            /* The driver reads a disk's size when it takes the device. */
            const char *names[] = {"unbind", "bind"};
            for (int i = 0; i < 2; i++) {
                snprintf(answer, sizeof answer, "/sys/bus/virtio/drivers/virtio_blk/%s", names[i]);
                int file = open(answer, O_WRONLY);
                if (write(file, line + 7, strlen(line + 7)) < 0)
                    perror(answer);
                close(file);
            }
            strcpy(answer, "rebound\n");
        } else {
            snprintf(asked + strlen(asked), sizeof asked - strlen(asked), " %s", line);
            snprintf(answer, sizeof answer, "asked%s\n", asked);
        }
        write(port, answer, strlen(answer));
    }
}

int main(void)
{
    const char *test = getenv("test");
    char text[64] = "", line[300];
    mkdir("/dev", 0755), mkdir("/proc", 0755), mkdir("/sys", 0755);
    if (mount("dev", "/dev", "devtmpfs", 0, NULL) || mount("proc", "/proc", "proc", 0, NULL) ||
        mount("sys", "/sys", "sysfs", 0, NULL))
        fail("mount");
    load_modules();
    int port = open_device("virtio-ports", "name", "efimera", O_RDWR);
    int root = open_device("block", "serial", "root", O_RDONLY);
    int scratch = open_device("block", "serial", "scratch", O_RDWR | O_SYNC);
    int root_for_writing = open_device("block", "serial", "root", O_RDWR | O_SYNC);
    if (port < 0 || root < 0 || scratch < 0)
        fail("devices");
    if (read(root, text, 16) != 16 || pwrite(scratch, "written by guest", 16, 512 * 1024) != 16)
        fail("disks");
    char random[17] = "";
    read_text("/sys/class/misc/hw_random/rng_current", random, sizeof random);
    snprintf(line, sizeof line, "up root=%.16s overwritten=%d cpus=%ld random=%s aslr=", text,
             pwrite(root_for_writing, "x", 1, 0) == 1, sysconf(_SC_NPROCESSORS_ONLN), random);
    read_text("/proc/sys/kernel/randomize_va_space", text, sizeof text);
    strcat(line, text), strcat(line, "\n");
    write(port, line, strlen(line));
    if (test && strcmp(test, "serve") == 0)
        serve(port);

    if (read(port, text, sizeof text) > 0 && test && strcmp(test, "flood") == 0) {
        int console = open("/dev/ttyS0", O_WRONLY);
        memset(line, 'x', sizeof line);
        for (int i = 0; i < 1000; i++)
            write(console, line, sizeof line);
    }
    if (test && strcmp(test, "panic") == 0)
        return 7;
    if (test && strcmp(test, "wait") == 0)
        for (;;)
            pause();
    sync();
    reboot(RB_POWER_OFF);
}
