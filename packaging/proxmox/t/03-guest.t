#!/usr/bin/perl -T
# A guest starts and ends: what becomes of its disks, on local and on shared storage.
use v5.26;
use warnings;

use Test::More;
use TenutoNode;

my $node = TenutoNode->new('host-a');
TenutoNode::load_plugin();
my $images = TenutoNode::images();
mkdir("$images/local");
PVE::Storage::add_storage('local-fast', 'tenuto', 'tenuto-path' => "$images/local");
PVE::Storage::add_storage('fast', 'tenuto', 'tenuto-path' => $images, shared => 1);

my $bytes = 'what the guest wrote' . "\0" x 4076;

# What the guest writes through its device, which is the writer: between two devices.
sub guest_writes {
    my ($name) = @_;
    my $client = $node->writer($name);
    $client->write(8192, $bytes);
    $client->flush();
    $client->close();
}

sub in_image {
    my ($path) = @_;
    open(my $file, '<:raw', $path) || die "$path: $!\n";
    seek($file, 8192, 0);
    read($file, my $found, length($bytes));
    return $found;
}

# Local storage.
my $local = PVE::Storage::vdisk_alloc('local-fast', 100, 'raw', undef, 8 << 10);
my $local_image = "$images/local/vm-100-disk-0.raw";
TenutoNode::changes();
PVE::Storage::activate_volumes([$local], undef, { 'guest-is-windows' => 1 });
is_deeply(
    [TenutoNode::changes()],
    [
        "volume add vm-100-disk-0 origin=$local_image format=raw export=nbd policy=write-back",
        'volume device vm-100-disk-0',
    ],
    'a guest that starts: the volume, then its device',
);
my $volume = $node->show('vm-100-disk-0');
is("$volume->{policy} $volume->{clients}", 'write-back 1',
    'it is served, and the device is its client');
PVE::Storage::activate_volumes([$local]);
is_deeply([TenutoNode::changes()], ['volume device vm-100-disk-0'],
    'a second time it is not added again');

PVE::Storage::deactivate_volumes([$local]);
is_deeply([TenutoNode::changes()], ['volume device vm-100-disk-0 --detach'],
    'a guest that ends on local storage: its device only');
TenutoNode::until_true('no client', sub { !$node->show('vm-100-disk-0')->{clients} });
guest_writes('vm-100-disk-0');
PVE::Storage::deactivate_volumes([$local]);
is($node->show('vm-100-disk-0')->{dirty_bytes}, 4096, '... and what is dirty stays in the cache');
isnt(in_image($local_image), $bytes, '... so the image has it not yet');

# The policy of the storage was changed.
PVE::Storage::config_of('local-fast')->{'tenuto-policy'} = 'write-through';
PVE::Storage::activate_volumes([$local]);
is($node->show('vm-100-disk-0')->{policy}, 'write-through',
    'the next start has the policy of the storage');
PVE::Storage::deactivate_volumes([$local]);

# Shared storage.
my $shared = PVE::Storage::vdisk_alloc('fast', 101, 'raw', undef, 8 << 10);
my $image = "$images/vm-101-disk-0.raw";
PVE::Storage::activate_volumes([$shared]);
open(my $in_use, '>', "$node->{dir}/device/vm-101-disk-0.in-use") || die "in-use: $!\n";
TenutoNode::changes();
ok(!eval { PVE::Storage::deactivate_volumes([$shared]); 1 },
    'refused: a device in use is not taken away');
like($@, qr/tenuto: .*in use by process 4711/, '... and it says by whom');
is_deeply([TenutoNode::changes()], ['volume device vm-101-disk-0 --detach'],
    '... and the volume stays');
unlink("$node->{dir}/device/vm-101-disk-0.in-use");

# Its daemon was killed, the guest has written, and then it ends.
$node->crash()->start();
unlink("$node->{dir}/device/vm-101-disk-0.pid");
guest_writes('vm-101-disk-0');
PVE::Storage::activate_volumes([$shared]);
TenutoNode::changes();
PVE::Storage::deactivate_volumes([$shared]);
is_deeply(
    [TenutoNode::changes()],
    [
        'volume device vm-101-disk-0 --detach',
        'volume destage vm-101-disk-0 --wait',
        'volume rm vm-101-disk-0',
    ],
    'a guest that ends on shared storage: its device, what is dirty, the volume',
);
is(in_image($image), $bytes, 'the image has what the guest wrote');
is_deeply([glob("$image.*")], [], 'nothing lies beside the image');
is($node->show('vm-101-disk-0'), undef, 'the daemon has let go of it');
PVE::Storage::deactivate_volumes([$shared]);
is_deeply([TenutoNode::changes()], [], 'a second time there is nothing to do');

# Clean: no destage is asked for, and a connection that is late to end is waited for.
PVE::Storage::activate_volumes([$shared]);
open(my $late, '>', "$node->{dir}/device/late") || die "late: $!\n";
TenutoNode::changes();
ok(eval { PVE::Storage::deactivate_volumes([$shared]); 1 },
    'a connection that ends late is waited for') || diag($@);
unlink("$node->{dir}/device/late");
is_deeply([TenutoNode::changes()], ['volume device vm-101-disk-0 --detach',
    'volume rm vm-101-disk-0'],
    'a guest that wrote nothing');

# Another client keeps the volume on this node.
PVE::Storage::activate_volumes([$shared]);
my $reader = $node->client('vm-101-disk-0');
ok($reader->is_read_only(), 'another client beside the device only reads');
TenutoNode::within(1, sub {
    ok(!eval { PVE::Storage::deactivate_volumes([$shared]); 1 },
        'refused: it is not let go of under that client');
});
like($@, qr/tenuto: volume vm-101-disk-0: 1 client is connected/, "... in tenuto's words");
$reader->close();
PVE::Storage::deactivate_volumes([$shared]);
is($node->show('vm-101-disk-0'), undef, '... and it is when that has gone');

# A destage that cannot be: the window of a backup is open.
PVE::Storage::activate_volumes([$shared]);
PVE::Storage::config_of('fast')->{shared} = 0;
PVE::Storage::deactivate_volumes([$shared]);
PVE::Storage::config_of('fast')->{shared} = 1;
TenutoNode::until_true('no client', sub { !$node->show('vm-101-disk-0')->{clients} });
$node->tenuto('volume', 'quiesce', 'vm-101-disk-0');
guest_writes('vm-101-disk-0');
ok(!eval { PVE::Storage::deactivate_volumes([$shared]); 1 },
    'refused: without its destage it is not let go of');
like($@, qr/tenuto: .*(?:quiesced|backup window)/, "... in tenuto's words");
ok($node->show('vm-101-disk-0')->{dirty_bytes}, '... and what is dirty is there');
$node->tenuto('volume', 'resume', 'vm-101-disk-0');
PVE::Storage::deactivate_volumes([$shared]);
is($node->show('vm-101-disk-0'), undef, '... and it is after the window');

# A start that fails leaves nothing that would keep the image here.
open(my $none, '>', "$node->{dir}/device/no-driver") || die "no-driver: $!\n";
ok(!eval { PVE::Storage::activate_volumes([$shared]); 1 }, 'refused: no driver, no device');
like($@, qr/tenuto: volume vm-101-disk-0: this kernel has no NBD driver/, "... in tenuto's words");
is($node->show('vm-101-disk-0'), undef, '... and the volume is taken back');
unlink("$node->{dir}/device/no-driver");

# The same without any stub: this is the real command on a machine without the driver.
SKIP: {
    skip('this machine has the driver, or is not root', 2) if -e '/dev/nbd0' || $> != 0;
    local @PVE::Storage::Custom::TenutoPlugin::device = @PVE::Storage::Custom::TenutoPlugin::tenuto;
    ok(!eval { PVE::Storage::activate_volumes([$shared]); 1 }, 'refused by the real command');
    like($@, qr/tenuto: volume vm-101-disk-0: .*NBD driver/, "... in tenuto's words");
}

# A volume of this name from elsewhere.
my $other = PVE::Storage::vdisk_alloc('local-fast', 101, 'raw', 'vm-101-disk-0', 8 << 10);
PVE::Storage::activate_volumes([$other]);
TenutoNode::changes();
for my $call (qw(activate_volumes vdisk_free volume_resize)) {
    my $function = PVE::Storage->can($call);
    my @arguments = $call eq 'activate_volumes' ? [$shared] : ($shared, 1 << 30, 0);
    ok(!eval { $function->(@arguments); 1 },
        "refused: $call of a disk whose name another image has here");
    like($@, qr{is another image on this node, \Q$images\E/local/vm-101-disk-0.raw},
        '... which is named');
}
PVE::Storage::deactivate_volumes([$shared]);
is_deeply([TenutoNode::changes()], [], '... and that one is not touched');
is($node->show('vm-101-disk-0')->{clients}, 1, '... its device neither');
PVE::Storage::activate_volumes([PVE::Storage::vdisk_alloc('local-fast', 102, 'raw', undef, 1024)]);
is(PVE::Storage::vdisk_alloc('fast', 102, 'raw', undef, 1024), 'fast:vm-102-disk-1',
    'a new disk has a name that no volume of this node has');
PVE::Storage::deactivate_volumes([$other]);
TenutoNode::until_true('no client', sub { !$node->show('vm-101-disk-0')->{clients} });
$node->tenuto('volume', 'rm', 'vm-101-disk-0');

# The image is gone.
unlink($image);
ok(!eval { PVE::Storage::activate_volumes([$shared]); 1 }, 'refused: a disk without an image');
like($@, qr/volume 'fast:vm-101-disk-0': its image is not there/, '... and it says so');

# No daemon.
PVE::Storage::activate_volumes([$local]);
$node->stop();
for my $call (qw(activate_volumes deactivate_volumes)) {
    ok(!eval { PVE::Storage->can($call)->([$local]); 1 }, "refused without a daemon: $call");
    like($@, qr/tenuto: .*start the daemon/, "... in tenuto's words");
}
ok(!eval { PVE::Storage::vdisk_free($local); 1 }, 'refused without a daemon: vdisk_free');
ok(-e $local_image, '... and the image is there');
$node->start();
is($node->show('vm-100-disk-0')->{state}, 'clean', 'the daemon has the volume again');

done_testing();
