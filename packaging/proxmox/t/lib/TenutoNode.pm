# A node for the tests: a daemon of the real binary in a directory of its own, and clients of its
# volumes.
#
# Owns directories, configuration, start, kill and clean-up. Always true: processes are ended by
# their own number, and everything that was made here is removed when the test ends, also when it
# fails. The block device of a volume, which needs a driver of the kernel, is `t/bin/device`.
package TenutoNode;

use v5.26;
use warnings;

use Cwd ();
use File::Path ();
use File::Temp ();
use IO::Select ();
use IO::Socket::INET ();
use JSON::PP ();

use NbdClient;
use PVE::Storage;
use PVE::Tools;

# How long something may take that is sure to come, on a busy machine.
use constant PATIENCE_SECONDS => 20;

my ($here) = Cwd::getcwd() =~ m{\A(/.*)\z}s;
my ($binary) = ($ENV{TENUTO_BINARY} // '') =~ m{\A(/[\x21-\x7e]+)\z};
die "TENUTO_BINARY must name the program to test, by its whole path\n" if !$binary;
my $owner = $$;
my ($root) = File::Temp::tempdir('tenuto-pve-XXXXXX', TMPDIR => 1) =~ m{\A(/[\x21-\x7e]+)\z};
my @nodes;
# A test that is ended tidies up as well.
$SIG{$_} = sub { exit(1) } for qw(TERM INT HUP);

# For taint checks, as the daemons of Proxmox VE do it.
delete @ENV{qw(IFS CDPATH ENV BASH_ENV TENUTO_SOCKET TENUTO_CONFIG)};
$ENV{PATH} = '/usr/sbin:/usr/bin:/sbin:/bin';
$ENV{NO_COLOR} = 1;
$ENV{TENUTO_BINARY} = $binary;

# Stands for the shared storage.
sub images {
    my $path = "$root/images";
    mkdir($path);
    return $path;
}

# Loads the plugin as Proxmox VE does, with the programs of this test.
sub load_plugin {
    my $version = PVE::Storage::load("$here/TenutoPlugin.pm", 'PVE::Storage::Custom::TenutoPlugin');
    no warnings 'once';
    @PVE::Storage::Custom::TenutoPlugin::tenuto = ($binary);
    @PVE::Storage::Custom::TenutoPlugin::device = ("$here/t/bin/device");
    @PVE::Storage::Custom::TenutoPlugin::scope = ();
    return $version;
}

# Calls a function while the plugin waits no longer than this for a device, or for clients to go.
sub within {
    my ($seconds, $function) = @_;
    no warnings 'once';
    local $PVE::Storage::Custom::TenutoPlugin::attach_seconds = $seconds;
    local $PVE::Storage::Custom::TenutoPlugin::settle_seconds = $seconds;
    return $function->();
}

sub new {
    my ($class, $name) = @_;
    my $dir = "$root/$name";
    mkdir($_) || die "mkdir $_: $!\n" for $dir, map { "$dir/$_" } qw(run state stage device);
    my $self = bless { name => $name, dir => $dir }, $class;
    my $images = images();
    open(my $file, '>', "$dir/tenuto.toml") || die "$dir/tenuto.toml: $!\n";
    print $file <<"CONFIGURATION";
[host]
name = "$name"
group = "@{[ (split(' ', $( ))[0] ]}"
run-dir = "$dir/run"
stage-dir = "$dir/stage"
state-dir = "$dir/state"
[cache]
path = "$dir/cache"
size = "128MiB"
ram = "16MiB"
stage = "16MiB"
overlay-ram = "16MiB"
[images]
allow = ["$images"]
[defaults]
destage-after = "never"
CONFIGURATION
    close($file) || die "$dir/tenuto.toml: $!\n";
    push @nodes, $self;
    return $self->start();
}

# Starts the daemon, waits for its word, and makes this node the one that the plugin runs on.
sub start {
    my ($self) = @_;
    $self->here();
    pipe(my $from, my $to) || die "pipe: $!\n";
    my $pid = fork() // die "fork: $!\n";
    if (!$pid) {
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>&', $to);
        open(STDERR, '>>', "$self->{dir}/log");
        exec($binary, 'serve') or kill('KILL', $$);
    }
    $self->{pid} = $pid;
    close($to);
    my $said = '';
    my $end = time() + PATIENCE_SECONDS;
    while ($said !~ /^ready/m) {
        my ($ready) = IO::Select->new($from)->can_read(1);
        next if !$ready && time() < $end;
        next if $ready && sysread($from, $said, 4096, length($said));
        die "the daemon of $self->{name} does not start: " . $self->log() . "\n";
    }
    $self->{said} = $from;
    return $self;
}

sub log {
    my ($self) = @_;
    open(my $file, '<', "$self->{dir}/log") || return '';
    return do { local $/; <$file> // '' };
}

# The node that commands of this process and of the plugin are for.
sub here {
    my ($self) = @_;
    $ENV{TENUTO_CONFIG} = "$self->{dir}/tenuto.toml";
    $ENV{TENUTO_TEST_DEVICES} = "$self->{dir}/device";
    return $self;
}

sub stop { return $_[0]->end('TERM') }

# As a loss of the daemon, and with it of its locks.
sub crash { return $_[0]->end('KILL') }

sub end {
    my ($self, $signal) = @_;
    my $pid = delete($self->{pid}) // return $self;
    kill($signal, $pid);
    waitpid($pid, 0);
    return $self;
}

# The exit code and the document of a command of this node.
sub tenuto {
    my ($self, @words) = @_;
    local $ENV{TENUTO_CONFIG} = "$self->{dir}/tenuto.toml";
    open(my $from, '-|', '/bin/sh', '-c', 'exec "$@" 2>/dev/null', 'sh', $binary, '--json', @words)
        || die "$binary: $!\n";
    my $said = do { local $/; <$from> // '' };
    close($from);
    return ($? >> 8, eval { JSON::PP::decode_json($said) } // {});
}

# A port that nobody has now.
sub free_port {
    my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') // die "listen: $!\n";
    my ($port) = $socket->sockport() =~ /\A([0-9]+)\z/;
    return $port;
}

# A cluster of these nodes, which are stopped and started for it.
sub cluster {
    my ($first, @others) = @_;
    my $vault = "$root/vault";
    mkdir($vault);
    my @listen = ('--listen', '127.0.0.1:' . free_port());
    $first->stop();
    my ($code, $said) = $first->tenuto('cluster', 'init', 'c1', @listen, '--vault', "dir:$vault",
        '--domain', $first->{name});
    die "cluster init ended with $code\n" if $code;
    $first->start();
    for my $other (@others) {
        ($code, $said) = $first->tenuto('cluster', 'token');
        my ($token) = ($said->{token} // '') =~ /\A([\x21-\x7e]+)\z/;
        die "cluster token ended with $code\n" if !$token;
        $other->stop();
        @listen = ('--listen', '127.0.0.1:' . free_port());
        ($code) = $other->tenuto('cluster', 'join', $token, @listen, '--domain', $other->{name});
        die "cluster join ended with $code\n" if $code;
        $other->start();
        $other->linked();
    }
}

# Waits for the links of this node to all others.
sub linked {
    my ($self) = @_;
    my $up = sub {
        my ($code, $peers) = $self->tenuto('peer', 'ls');
        return !grep { $_->{state} ne 'up' } @{ $peers->{peers} };
    };
    until_true("links of $self->{name}", $up);
}

sub show {
    my ($self, $volume) = @_;
    my ($code, $document) = $self->tenuto('volume', 'show', $volume);
    return $code ? undef : $document;
}

sub volumes {
    my ($self) = @_;
    my ($code, $document) = $self->tenuto('volume', 'ls');
    die "volume ls ended with $code\n" if $code;
    return sort map { $_->{name} } @{ $document->{volumes} };
}

# A client that is no device.
sub client {
    my ($self, $volume) = @_;
    return NbdClient->new("$self->{dir}/run/$volume.nbd.sock");
}

# The same when it may write, which it may once the client before has gone.
sub writer {
    my ($self, $volume) = @_;
    my $client;
    my $free = sub {
        $client = $self->client($volume);
        return 1 if !$client->is_read_only();
        $client->close();
        return 0;
    };
    until_true("the right to write $volume", $free);
    return $client;
}

# What the plugin ran of `tenuto` since the last call, without the programs and what only asks.
sub changes {
    my @words = map {
        my @command = @$_;
        my ($at) = grep { $command[$_] eq '--json' } 0 .. $#command;
        join(' ', @command[$at + 1 .. $#command]);
    } @PVE::Tools::commands;
    @PVE::Tools::commands = ();
    return grep { !/\A(?:volume (?:show|ls)|peer ls)\b/ } @words;
}

# Waits for something that is sure to come.
sub until_true {
    my ($what, $condition) = @_;
    my $end = time() + PATIENCE_SECONDS;
    until ($condition->()) {
        die "this did not come: $what\n" if time() > $end;
        select(undef, undef, undef, 0.02);
    }
}

END {
    my $status = $?;
    if ($owner && $$ == $owner) {
        for my $node (@nodes) {
            for my $path (glob("$node->{dir}/device/*.pid")) {
                open(my $file, '<', $path) || next;
                my ($pid) = (<$file> // '') =~ /\A([1-9][0-9]*)\n/;
                kill('TERM', $pid) if $pid;
            }
            $node->end('KILL');
        }
        File::Path::remove_tree($root);
    }
    $? = $status;
}

1;
