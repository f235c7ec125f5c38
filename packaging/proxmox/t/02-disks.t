#!/usr/bin/perl -T
# Disks are made, listed, resized and destroyed, on one node with a real daemon.
use v5.26;
use warnings;

use Test::More;
use TenutoNode;

use constant MIB => 1 << 20;

my $node = TenutoNode->new('host-a');
TenutoNode::load_plugin();
my $images = TenutoNode::images();
PVE::Storage::add_storage('fast', 'tenuto', 'tenuto-path' => "$images/");

sub refused {
    my ($what, $words, $call) = @_;
    ok(!eval { $call->(); 1 }, "refused: $what");
    like($@, $words, '... and it says why');
}
sub beside { my ($name) = @_; return grep { !/\.raw\z/ } glob("$images/$name.*") }
sub alloc { return PVE::Storage::vdisk_alloc('fast', @_) }

# Make.
my $first = alloc(100, 'raw', undef, 8 << 10);
is($first, 'fast:vm-100-disk-0', 'the first disk of a guest');
is(-s "$images/vm-100-disk-0.raw", 8 * MIB, 'its image has the size that was asked for');
is((stat("$images/vm-100-disk-0.raw"))[2] & 0007, 0, 'others may not read it');
is_deeply([$node->volumes()], [], 'nothing is served before it is used');
is(alloc(100, undef, undef, 4 << 10), 'fast:vm-100-disk-1',
    'the second one, in the default format');
is(alloc(100, 'raw', 'vm-100-cloudinit', 4 << 10), 'fast:vm-100-cloudinit', 'one with a name');
is(alloc(101, 'raw', undef, 528), 'fast:vm-101-disk-0', 'of another guest: 528 KiB for firmware');
is(alloc(101, 'raw', 'vm-101-part', 1.5), 'fast:vm-101-part', 'part of a KiB');
is(-s "$images/vm-101-part.raw", 2048, '... is rounded up');

refused('a name that is taken', qr/cannot make .*exists/i, sub { alloc(100, 'raw', 'vm-100-disk-0',
    1024) });
is(-s "$images/vm-100-disk-0.raw", 8 * MIB, '... and the image is as it was');
refused('a name of another guest', qr/is not of guest 100/, sub { alloc(100, 'raw', 'vm-101-disk-7',
    1024) });
refused('qcow2', qr/its images are raw/, sub { alloc(100, 'qcow2', undef, 1024) });
refused('no size', qr/cannot be made/, sub { alloc(100, 'raw', undef, 0) });
refused('an odd name', qr/is not a disk of a tenuto storage/, sub { alloc(100, 'raw', 'vm-100-../x',
    1024) });

# List.
is_deeply(
    [map { "$_->{volid} $_->{size} $_->{vmid} $_->{format}" } PVE::Storage::vdisk_list('fast',
        100)],
    [
        'fast:vm-100-cloudinit ' . 4 * MIB . ' 100 raw',
        'fast:vm-100-disk-0 ' . 8 * MIB . ' 100 raw',
        'fast:vm-100-disk-1 ' . 4 * MIB . ' 100 raw',
    ],
    'disks of one guest',
);
mkdir("$images/vm-100-disk-8.raw");
symlink('/etc/passwd', "$images/vm-100-disk-9.raw");
for my $name ('vm-100-disk-2.qcow2', 'notes.raw', 'vm-100-a b.raw', 'vm-100-a.b.raw') {
    open(my $file, '>', "$images/$name") || die "$name: $!\n";
}
my @all = PVE::Storage::vdisk_list('fast');
is(scalar(@all), 5, 'all disks, and no other file, directory or link');
is_deeply([map { $_->{volid} } PVE::Storage::vdisk_list('fast', undef, [$first, 'fast:vm-7-none'])],
    [$first], 'those of a list that are there');
refused('a link as image', qr/is not a file/,
    sub { PVE::Storage::activate_volumes(['fast:vm-100-disk-9']) });
refused('to destroy a link', qr/is not a file/,
    sub { PVE::Storage::vdisk_free('fast:vm-100-disk-9') });
rmdir("$images/vm-100-disk-8.raw");
unlink("$images/vm-100-disk-9.raw");

# Size.
is(PVE::Storage::volume_size_info($first), 8 * MIB, 'the size of a disk');
my @info = PVE::Storage::volume_size_info($first, 5);
is_deeply([@info[0, 1, 3]], [8 * MIB, 'raw', undef], '... with its format, and no parent');
refused('the size of nothing', qr/its image is not there/,
    sub { PVE::Storage::volume_size_info('fast:vm-7-none') });

# Resize, without and with a guest.
PVE::Storage::volume_resize($first, 16 * MIB, 0);
is(PVE::Storage::volume_size_info($first), 16 * MIB, 'a disk at rest grows');
is_deeply([$node->volumes()], [], '... and is not served afterwards');
PVE::Storage::activate_volumes([$first]);
PVE::Storage::volume_resize($first, 24 * MIB + 1, 1);
is($node->show('vm-100-disk-0')->{size_bytes}, 24 * MIB + 1024,
    'a disk in use grows, in whole KiB');
is(PVE::Storage::volume_size_info($first), 24 * MIB + 1024, '... and its image with it');
refused('a smaller disk', qr/tenuto: .*would be lost; .*--shrink/,
    sub { PVE::Storage::volume_resize($first, 8 * MIB, 1) });
is(PVE::Storage::volume_size_info($first), 24 * MIB + 1024, '... and it has its size still');
PVE::Storage::deactivate_volumes([$first]);

# Destroy: a client that is no device keeps it.
my $client = $node->writer('vm-100-disk-0');
$client->write(0, 'x' x 4096);
$client->flush();
TenutoNode::changes();
refused('to destroy it under a client',
    qr/tenuto: volume vm-100-disk-0: 1 client is connected; disconnect first/,
    sub { TenutoNode::within(1, sub { PVE::Storage::vdisk_free($first) }) });
is_deeply([grep { /discard/ } TenutoNode::changes()], [], '... and nothing was to be discarded');
ok(-e "$images/vm-100-disk-0.raw", '... and its image is there');
is($client->read(0, 4096), 'x' x 4096, '... and its client reads what it wrote');
$client->close();

# Destroy: what only the cache has goes with it, and the image last.
is($node->show('vm-100-disk-0')->{dirty_bytes}, 4096, 'it has data that its image has not');
TenutoNode::changes();
PVE::Storage::vdisk_free($first);
is_deeply(
    [TenutoNode::changes()],
    [
        'volume device vm-100-disk-0 --detach',
        'volume rm vm-100-disk-0',
        'volume rm vm-100-disk-0 --discard-dirty=vm-100-disk-0',
    ],
    'first the device, then the volume, and what is dirty by its name',
);
is_deeply([glob("$images/vm-100-disk-0.*")], [], 'nothing is left of it');
is_deeply([$node->volumes()], [], '... nor in the daemon');

# Destroy: one that is not served is served for a moment, to see that no one else does.
TenutoNode::changes();
PVE::Storage::vdisk_free('fast:vm-100-disk-1');
like((TenutoNode::changes())[0], qr/\Avolume add vm-100-disk-1 origin=/,
    'a disk that is not served is taken first');
ok(!-e "$images/vm-100-disk-1.raw", '... and destroyed');

# Destroy: with its device in use.
my $third = alloc(100, 'raw', 'vm-100-disk-0', 8 << 10);
PVE::Storage::activate_volumes([$third]);
open(my $in_use, '>', "$node->{dir}/device/vm-100-disk-0.in-use") || die "in-use: $!\n";
refused('to destroy it with its device in use', qr/tenuto: .*in use by process 4711/,
    sub { PVE::Storage::vdisk_free($third) });
ok(-e "$images/vm-100-disk-0.raw", '... and its image is there');
unlink("$node->{dir}/device/vm-100-disk-0.in-use");

# Destroy: the image cannot go, so what is dirty stays.
my $guest = eval { $node->client('vm-100-disk-0') };
ok($guest->is_read_only(), 'the device is the writer');
$guest->close();
PVE::Storage::deactivate_volumes([$third]);
$client = $node->writer('vm-100-disk-0');
$client->write(0, 'y' x 4096);
$client->flush();
$client->close();
SKIP: {
    # Root may write to any directory that takes writes at all.
    skip('this file system has no immutable directories', 3)
        if system('/bin/sh', '-c', 'chattr +i "$1" 2>/dev/null', 'sh', $images) != 0;
    my $refused = !eval { PVE::Storage::vdisk_free($third); 1 };
    my $error = $@;
    system('chattr', '-i', $images);
    ok($refused, 'refused: to destroy an image that cannot be removed');
    like($error, qr/cannot remove files of/, '... and it says why');
    is($node->show('vm-100-disk-0')->{dirty_bytes}, 4096, '... and what is dirty is there');
}
PVE::Storage::vdisk_free($third);
ok(!-e "$images/vm-100-disk-0.raw", 'it is destroyed when the directory takes that');

# What was removed past Proxmox VE.
my $gone = alloc(102, 'raw', undef, 1024);
PVE::Storage::activate_volumes([$gone]);
PVE::Storage::deactivate_volumes([$gone]);
unlink("$images/vm-102-disk-0.raw");
{
    my $warned = '';
    local $SIG{__WARN__} = sub { $warned .= $_[0] };
    PVE::Storage::vdisk_free($gone);
    like($warned, qr/does not exist/, 'an image that is gone is told');
}
is_deeply([$node->volumes()], [], '... and its volume removed');
open(my $ledger, '>', "$images/vm-102-disk-0.raw.tenuto") || die "ledger: $!\n";
refused('a name beside which a ledger lies', qr/'vm-102-disk-0.raw.tenuto' .*without its volume/,
    sub { alloc(102, 'raw', 'vm-102-disk-0', 1024) });
is(alloc(102, 'raw', undef, 1024), 'fast:vm-102-disk-1', '... and it is not given to a new disk');

done_testing();
