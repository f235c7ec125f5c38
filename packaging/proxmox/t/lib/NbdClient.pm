# A client of NBD over a UNIX socket: connect, read, write, flush.
#
# Owns as much of the protocol as the tests need: fixed newstyle, the default export, simple
# replies, one request at a time. See the NBD specification, `doc/proto.md` of NetworkBlockDevice/nbd.
package NbdClient;

use v5.26;
use warnings;

use IO::Socket::UNIX ();
use Socket qw(SOCK_STREAM);

use constant {
    HELLO => 'NBDMAGICIHAVEOPT',
    REQUEST => 0x25609513,
    SIMPLE_REPLY => 0x67446698,
    EXPORT_NAME => 1,
    FIXED_NEWSTYLE_NO_ZEROES => 3,
};
use constant { READ => 0, WRITE => 1, DISCONNECT => 2, FLUSH => 3 };
# Of an export: it takes no writes.
use constant READ_ONLY => 2;

# Dies with "no export" if the server hangs up, as it does where it gives none.
sub new {
    my ($class, $path) = @_;
    my $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $path)
        || die "no export: $path: $!\n";
    my $self = bless { socket => $socket }, $class;
    my ($hello, $flags) = unpack('a16 n', $self->take(18));
    die "no export: not a server of NBD\n" if $hello ne HELLO;
    $self->give(pack('N a8 N N', FIXED_NEWSTYLE_NO_ZEROES, 'IHAVEOPT', EXPORT_NAME, 0));
    @{$self}{qw(size flags)} = unpack('Q> n', $self->take(10));
    return $self;
}

sub size { return $_[0]->{size} }
sub is_read_only { return $_[0]->{flags} & READ_ONLY }

sub give {
    my ($self, $bytes) = @_;
    local $SIG{PIPE} = 'IGNORE';
    while (length($bytes)) {
        my $count = syswrite($self->{socket}, $bytes) // die "no export: $!\n";
        substr($bytes, 0, $count, '');
    }
}

sub take {
    my ($self, $length) = @_;
    my $bytes = '';
    while (length($bytes) < $length) {
        my $count = sysread($self->{socket}, $bytes, $length - length($bytes), length($bytes));
        die "no export: the server hung up\n" if !$count;
    }
    return $bytes;
}

sub request {
    my ($self, $type, $offset, $length, $data) = @_;
    $self->give(pack('N n n Q> Q> N', REQUEST, 0, $type, 1, $offset, $length) . ($data // ''));
    my ($magic, $error) = unpack('N N Q>', $self->take(16));
    die "not a simple reply\n" if $magic != SIMPLE_REPLY;
    die "error $error of the server\n" if $error;
    return $type == READ ? $self->take($length) : '';
}

sub read { return $_[0]->request(READ, $_[1], $_[2]) }
sub flush { return $_[0]->request(FLUSH, 0, 0) }

sub write {
    my ($self, $offset, $data) = @_;
    return $self->request(WRITE, $offset, length($data), $data);
}

# Returns when the server has hung up as well.
sub close {
    my ($self) = @_;
    $self->give(pack('N n n Q> Q> N', REQUEST, 0, DISCONNECT, 1, 0, 0));
    sysread($self->{socket}, my $rest, 1);
    CORE::close($self->{socket});
}

1;
