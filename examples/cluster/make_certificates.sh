#!/bin/sh
# Makes an authority, once, and a certificate for each address of a node of a Ray cluster:
#
#     sh make_certificates.sh 10.0.0.1 10.0.0.2
#     scp ca.crt 10.0.0.2.crt 10.0.0.2.key 10.0.0.2:/etc/ray/   # as ca.crt, node.crt and node.key there
#
# Run it again, in the same directory, for nodes that come later. Keep ca.key where no node can read it.
set -eu
umask 077
[ $# -gt 0 ] || { echo "usage: make_certificates.sh ADDRESS..." >&2; exit 2; }
new="-newkey rsa:3072 -nodes"
if [ ! -e ca.key ]; then
    openssl req -x509 $new -days 3650 -subj "/CN=ray authority" -keyout ca.key -out ca.crt
fi
for address in "$@"; do
    case $address in
        *[!0-9.:a-fA-F]*) name="DNS:$address" ;;
        *) name="IP:$address" ;;
    esac
    openssl req $new -subj "/CN=$address" -keyout "$address.key" -out "$address.csr"
    # Processes of one node reach each other at its loopback.
    echo "subjectAltName=$name,IP:127.0.0.1,DNS:localhost" > "$address.names"
    openssl x509 -req -in "$address.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 \
        -extfile "$address.names" -out "$address.crt"
    rm "$address.csr" "$address.names"
done
