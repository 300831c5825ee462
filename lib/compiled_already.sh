# Sourced by the tests that build the library as lib/install.md says. To compile every kernel again would take each of
# them a quarter of an hour of one core.

# Makes `compiler`: a compiler of C and C++ that compiles the smallest kernel, and for the others takes the object that
# the build has of that source and those flags, from the archives in folder $2; it lists the headers where that is asked
# for. It notes the kernels that it compiles in the file `compiled`.
make_compiler() { # REAL FOLDER ROOT
    local smallest
    smallest=$(cd "$3" && ls -S kernels/{decode,long,merge,short}/*.cu | tail -1 | cut -d/ -f2- | tr / _)
    : >compiled
    cat >compiler <<END
#!/bin/bash
set -eu
object=; source=; before=; lists=false
lister=($1) # as asked, but that headers alone are listed
for argument; do
    [ "\$before" != -o ] || object=\$argument
    case \$argument in
    -o | -c) ;;
    -MD) lister+=(-M); lists=true ;;
    *) [ "\$before" = -o ] || lister+=("\$argument") ;;
    esac
    case \$argument in *.cu | *.cu.cc) source=\$argument ;; esac
    before=\$argument
done
case \$source in
*/sim/kernels/*) name=\${source##*/sim/kernels/} ;;
*_sim_*.cu.cc) name=\${source##*_sim_} ;;
*) name=\${source#kernels/} ;;
esac
name=\${name%.cc}
name=\${name//\//_}
if [ -z "\$name" ] || [ "\$name" = "$smallest" ]; then
    [ -z "\$name" ] || echo "\$name" >>"$PWD/compiled"
    exec $1 "\$@"
fi
for archive in "$2"/lib*_sim.a; do
    member=\$(ar t "\$archive" | grep "_sim_\$name.*\.o\$" || true)
    [ -n "\$member" ] || continue
    ar p "\$archive" "\$member" >"\$object"
    ! \$lists || "\${lister[@]}"
    exit
done
echo "no object of \$source" >&2
exit 1
END
    chmod +x compiler
}
