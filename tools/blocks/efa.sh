# The EFA installer's library is the system's.
mount -t tmpfs none /opt
mkdir -p /opt/amazon/efa/lib
ln -s "$(ldconfig -p | sed -n 's/.*libfabric.so.1 .*=> //p' | head -n 1)" /opt/amazon/efa/lib/libfabric.so.1
