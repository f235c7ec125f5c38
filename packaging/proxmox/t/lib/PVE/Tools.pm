# A stub of PVE::Tools: what the plugin uses of it, with the same parameters and results.
#
# Stricter than the real one: commands are lists of plain, untainted words, parameters are known
# ones, and no program reads standard input. Keeps every command for the tests. Written from the
# interface; nothing of it is Proxmox's.
package PVE::Tools;

use strict;
use warnings;

use IO::Select ();
use IPC::Open3 qw(open3);
use JSON::PP ();
use Scalar::Util qw(tainted);
use Symbol qw(gensym);

# Every command that was run, as a list of words.
our @commands;

my %KNOWN = map { $_ => 1 } qw(
    timeout umask errmsg input output outfunc errfunc logfunc afterfork noerr keeplocale quiet
);
my %USED = map { $_ => 1 } qw(timeout outfunc errfunc noerr);

sub run_command {
    my ($command, %param) = @_;
    die "not a list: a shell would read it\n" if ref($command) ne 'ARRAY';
    for my $word (@$command) {
        die "a word of a command is no text\n" if !defined($word) || ref($word);
        die "'$word' is tainted\n" if tainted($word);
        die "'$word' has characters that no word of this plugin has\n"
            if $word !~ m{\A[\x21-\x7e]+\z};
    }
    for my $name (sort keys %param) {
        die "got unknown parameter '$name' for run_command\n" if !$KNOWN{$name};
        die "this stub does not know what '$name' does\n" if !$USED{$name};
    }
    push @commands, [@$command];

    my ($code, $pid) = (-1);
    eval {
        my ($in, $out, $err) = (undef, undef, gensym());
        $pid = open3($in, $out, $err, @$command);
        close($in);
        local $SIG{ALRM} = sub { die "got timeout\n" };
        alarm($param{timeout}) if $param{timeout};
        my %part = (fileno($out) => ['outfunc', ''], fileno($err) => ['errfunc', '']);
        my $open = IO::Select->new($out, $err);
        while ($open->count) {
            for my $handle ($open->can_read) {
                my $part = $part{ fileno($handle) };
                my $more = sysread($handle, $part->[1], 4096, length($part->[1]));
                my $tell = $param{ $part->[0] } // sub { };
                $tell->($1) while $part->[1] =~ s/\A([^\n]*)\n//;
                next if $more;
                $tell->($part->[1]) if length($part->[1]);
                $open->remove($handle);
            }
        }
        waitpid($pid, 0);
        $code = $? >> 8;
        die 'got signal ' . ($? & 127) . "\n" if $? & 127;
        die "exit code $code\n" if $code;
    };
    my $error = $@;
    alarm(0);
    return $code if !$error;
    if ($error eq "got timeout\n") {
        kill('KILL', $pid);
        waitpid($pid, 0);
    } elsif ($param{noerr}) {
        return $code;
    }
    die "command '@$command' failed: $error";
}

# Room of a file system in bytes; undef where it does not answer in time.
sub df {
    my ($path, $timeout) = @_;
    die "no limit of time\n" if !$timeout;
    my @lines;
    my $code = eval {
        run_command(
            ['/bin/df', '-B1', '--output=size,used,avail', $path],
            outfunc => sub { push @lines, $_[0] },
            errfunc => sub { },
            timeout => $timeout,
        );
    };
    pop @commands;
    return { total => 0, used => 0, avail => 0 } if !defined($code);
    my ($total, $used, $avail) = $lines[-1] =~ /([0-9]+) +([0-9]+) +([0-9]+)/;
    return { total => $total, used => $used, avail => $avail };
}

# What a function returns, run in a process of its own for so many seconds at most.
sub run_fork_with_timeout {
    my ($timeout, $function) = @_;
    die "no limit of time\n" if !$timeout;
    my $pid = open(my $from, '-|') // die "cannot fork: $!\n";
    if (!$pid) {
        print JSON::PP->new->allow_nonref->encode($function->());
        close(STDOUT);
        kill('KILL', $$);
    }
    my $said = do { local $/; <$from> };
    close($from);
    return JSON::PP->new->allow_nonref->decode($said);
}

1;
