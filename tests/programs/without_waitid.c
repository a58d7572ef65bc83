// Executes a command for which waitid fails: without_waitid COMMAND...
#include "driver.h"
#include "seccomp.h"

int main(int count, char **words) {
    (void)count;
    if (filter_call(SYS_waitid, SECCOMP_RET_ERRNO | EPERM)) return 98;
    execvp(words[1], words + 1);
    return 99;
}
