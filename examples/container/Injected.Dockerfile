# An image that holds only the library, and a static cp to copy it: for init containers (examples/kubernetes).
#
#   docker build -f Injected.Dockerfile -t registry.example/vramtrace:0.1.0 .
FROM busybox:1.37-musl AS tools

FROM scratch
COPY --from=tools /bin/busybox /bin/cp
COPY libvramtrace.so /libvramtrace.so
ENV PATH=/bin
