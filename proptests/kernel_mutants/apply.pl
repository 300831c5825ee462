# apply.pl MUTANTS FILES... OUTPUT_FOLDER: writes each mutant as OUTPUT_FOLDER/NAME.cc, and their table as
# OUTPUT_FOLDER/kernel_mutants_list.h. Headers among the files stand in the place where they are included first. Of a
# launcher that a kernel calls, the mutant is the two together.
# Dies where a text is not found exactly once. To be quick to compile, a mutant is of no more than needed: of kernels of
# 16 bits, that for bf16; of kernels whose width is compiled in, that for heads of at most 64 features, if they take
# such; of kernels that each feature has one of, that for all of them. Wider heads are left to the kernel itself. One
# with a line `heads  of any width` is of all widths, one with `heads  192, 128` is that for heads of at most so many
# features, and so many of v, one with `features  one by one` of each kernel. A line `likely` names what is asked first:
# a case of kernels_long_cases.c, `large rows` for those of kernels_large.c, or a property and the number of its case.
use strict;
use warnings;

my ($list, @files) = @ARGV;
my $folder = pop @files;
my %source;
for my $file (@files) {
    local $/;
    open my $in, '<', $file or die "$file: $!\n";
    $source{$1} = <$in> if $file =~ m|(?:^\|/)kernels/(?!sim/\|device/)([\w/]+\.\w+)$|;
}

my (%launcher_of, %file_of); # as kernels.inc has them
while ($source{'kernels.inc'} =~ /^KERNEL\((\w+), \w+, ([\w\/]+), \w+\)$/mg) {
    ($launcher_of{"$2.cu"}, $file_of{$1}) = ($1, "$2.cu");
}

# The source with the headers that are at hand in it.
sub expanded {
    my ($code, $seen) = @_;
    return $code =~ s{^#include "kernels/([\w/]+\.h)"\n}{
        !exists $source{$1} ? $& : $seen->{$1}++ ? '' : expanded($source{$1}, $seen)}gmer;
}

# The code of a kernel `name` for heads of at most `k` and `v` features; its wider instances are those of `kernel`.
sub narrowed {
    my ($code, $name, $kernel, $k, $v) = @_;
    return $code if $kernel eq 'short_forward_sm90_d256'; # of wider heads alone
    $code =~ s/\blaunch<T, shape<\d+, \d+>>/launch<T, shape<$k, $v>>/g
        or $code =~ s/\b(launch\w*<(?:T, )?)(?:32|64|128|256)\b/$1$k/g or return $code;
    $code =~ s/\bany_shape<\d+, (?=\d)/any_shape<$k, /g;
    my $of = $kernel =~ /backward/ ? 'p->forward' : '(*p)';
    my $is_wide = "$of.head_dim > $k || $of.head_dim_v > $v";
    my $itself = "KERNEL_SYMBOL($kernel)";
    $code =~ s{^extern "C" int KERNEL_SYMBOL\($name\)(\(.*\))\n\{\n}
              {extern "C" int $itself$1;\n$&    if ($is_wide) return $itself(p, stream);\n}m
        or die "$name: its launcher is not understood\n";
    return $code;
}

my (@mutants, $text);
open my $in, '<', $list or die "$list: $!\n";
while (<$in>) {
    chomp;
    if (/^mutant +(\w+)$/) { push @mutants, { name => $1, from => [], to => [] }; }
    elsif (/^(bug|file|kernel|heads|features|likely) +(.+)$/) { $mutants[-1]{$1} = $2; }
    elsif (/^(from|to)$/) { $text = $mutants[-1]{$1}; }
    elsif (/^\|(.*)$/) { push @$text, $1; }
    elsif (/^[^#]/) { die "$list:$.: not understood: $_\n"; }
}

open my $table, '>', "$folder/kernel_mutants_list.h" or die "$folder: $!\n";
for my $m (@mutants) {
    my ($from, $to) = (join("\n", @{ $m->{from} }), join("\n", @{ $m->{to} }));
    my $part = $launcher_of{ $m->{file} } // $m->{file};
    my $kernel = $m->{kernel} // $part;
    my $code = expanded($source{ $m->{file} } // die("$m->{name}: there is no $m->{file}\n"), {});
    my $found = $from eq '' ? 1 : scalar(() = $code =~ /\Q$from\E/g);
    die "$m->{name}: found $found times in $m->{file}, not once:\n$from\n" if $found != 1;
    $code =~ s/\Q$from\E/$to/ if $from ne ''; # an empty pattern is the last one again
    if ($kernel ne $part) {
        $code =~ s/\bTHREADS\b/PART_THREADS/g if $code =~ /^enum \{ THREADS\b/m; # the kernel has its own
        $code .= expanded($source{ $file_of{$kernel} // die("there is no $kernel\n") }, {});
        $code =~ s/KERNEL_SYMBOL\($part\)/KERNEL_SYMBOL($m->{name}_$part)/g or die "$m->{file} has no launcher\n";
    }
    $code =~ s/KERNEL_SYMBOL\($kernel\)/KERNEL_SYMBOL($m->{name})/ or die "$kernel has no launcher\n";
    $code =~ s/(launch_(?:scores|width|few)|by_length)<f16>/$1<bf16>/g;
    $code =~ s/if (?:constexpr \(DIM <= 128|\(p.softmax_scale > 0)\) \{/if constexpr (DIM < 0) {/ if !$m->{features};
    my ($k, $v) = ($m->{heads} // '64, 64') =~ /^(\d+), (\d+)$/;
    $code = narrowed($code, $m->{name}, $kernel, $k, $v) if defined $k;
    open my $out, '>', "$folder/$m->{name}.cc" or die "$folder: $!\n";
    print $out $code;
    close $out or die "$m->{name}: $!\n";
    my $likely = defined $m->{likely} ? "\"$m->{likely}\"" : "NULL";
    print $table "MUTANT($m->{name}, $kernel, \"$m->{bug}\", $likely)\n";
}
close $table or die "table: $!\n";
