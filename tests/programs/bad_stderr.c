/* bad_stderr HOW PROGRAM ...: runs it with a stderr that a write must not wait for. Ends with its
   status; 97 if it was stopped. Prints how often a text of the recorder came through. HOW:
   limit       a file as long as RLIMIT_FSIZE allows
   full-pipe   a pipe that nobody reads, and that is full
   full-socket the same of a socket
   background  a terminal, from the background, which stops background writers (stty tostop)
   flow        a terminal whose output is stopped (Ctrl-S) */
#include "driver.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

static void fill(int end) {
    char text[4096] = {0};
    int flags = fcntl(end, F_GETFL);
    fcntl(end, F_SETFL, flags | O_NONBLOCK);
    while (write(end, text, sizeof text) > 0) {}
    while (write(end, text, 1) > 0) {}
    fcntl(end, F_SETFL, flags);
}

static int terminal(int *master, int stop_background) {
    struct termios modes;
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    if (grantpt(*master) || unlockpt(*master)) exit(96);
    setsid();
    int slave = open(ptsname(*master), O_RDWR); /* the session's from here on */
    if (tcgetattr(slave, &modes)) exit(94);
    if (stop_background) modes.c_lflag |= TOSTOP;
    if (tcsetattr(slave, TCSANOW, &modes)) exit(93);
    if (!stop_background && tcflow(slave, TCOOFF)) exit(92);
    return slave;
}

static void came_through(int from) {
    char text[65536];
    size_t size = 0;
    struct pollfd ready = {from, POLLIN, 0};
    while (size < sizeof text - 1 && poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN)) {
        ssize_t more = read(from, text + size, sizeof text - 1 - size);
        if (more <= 0) break;
        size += more;
    }
    text[size] = 0;
    int count = 0;
    for (char *at = text; (at = strstr(at, "vramtrace")); at++) count += at == text || at[-1] == '\n';
    fprintf(stderr, "came through %d\n", count);
}

int main(int count, char **arguments) {
    int ends[2] = {-1, -1}, status = 0, background = 0;
    if (count < 3) return 98;
    const char *how = arguments[1];
    pid_t whole = fork(); /* no leader of a process group: it may make a session */
    if (whole) {
        waitpid(whole, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 95;
    }
    if (!strcmp(how, "limit")) {
        struct rlimit limit = {1 << 20, 1 << 20};
        ends[1] = open("stderr.full", O_RDWR | O_CREAT | O_APPEND, 0600);
        if (ftruncate(ends[1], 1 << 20) || setrlimit(RLIMIT_FSIZE, &limit)) return 89;
    } else if (!strcmp(how, "full-pipe")) {
        if (pipe(ends)) return 88;
        fill(ends[1]);
    } else if (!strcmp(how, "full-socket")) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 87;
        fill(ends[1]);
    } else {
        background = !strcmp(how, "background");
        ends[1] = terminal(ends, background);
    }
    pid_t child = fork();
    if (child == 0) {
        if (background) setpgid(0, 0);
        dup2(ends[1], 2);
        alarm(20);
        execv(arguments[2], arguments + 2);
        _exit(86);
    }
    if (waitpid(child, &status, WUNTRACED) != child) return 85;
    if (background) came_through(ends[0]);
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        return 97;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}
