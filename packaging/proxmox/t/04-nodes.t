#!/usr/bin/perl -T
# Two nodes on one shared storage, without a cluster of Tenuto: one at a time has the image.
use v5.26;
use warnings;

use Test::More;
use TenutoNode;

my $a = TenutoNode->new('host-a');
my $b = TenutoNode->new('host-b');
TenutoNode::load_plugin();
my $images = TenutoNode::images();
PVE::Storage::add_storage('fast', 'tenuto', 'tenuto-path' => $images, shared => 1);

$a->here();
my $disk = PVE::Storage::vdisk_alloc('fast', 100, 'raw', undef, 8 << 10);
PVE::Storage::activate_volumes([$disk]);
is_deeply([map { $_->{volid} } do { $b->here(); PVE::Storage::vdisk_list('fast') }], [$disk],
    'the other node sees the disk');

# The guest runs on host-a: what a live migration would do on host-b.
for my $call (qw(activate_volumes vdisk_free)) {
    my @arguments = $call eq 'activate_volumes' ? [$disk] : $disk;
    ok(!eval { PVE::Storage->can($call)->(@arguments); 1 },
        "refused on host-b while host-a has it: $call");
    like($@, qr/tenuto: origin .*in use by tenuto .*which holds its lock/, "... in tenuto's words");
}
is_deeply([$b->volumes()], [], '... and host-b has no volume of it');
ok(-e "$images/vm-100-disk-0.raw", '... and the image is there');
is($a->show('vm-100-disk-0')->{clients}, 1, '... and the device of host-a has it still');
PVE::Storage::deactivate_volumes([$disk]);
is($a->show('vm-100-disk-0')->{clients}, 1, 'a cleaning up on host-b takes nothing from host-a');

# The guest ends on host-a and starts on host-b.
my $bytes = 'from host-a' . '.' x 4085;
$a->here();
$a->crash()->start();
unlink("$a->{dir}/device/vm-100-disk-0.pid");
my $client = $a->writer('vm-100-disk-0');
$client->write(4096, $bytes);
$client->flush();
$client->close();
ok($a->show('vm-100-disk-0')->{dirty_bytes}, 'host-a has what the image has not');
PVE::Storage::deactivate_volumes([$disk]);

$b->here();
PVE::Storage::activate_volumes([$disk]);
$client = $b->client('vm-100-disk-0');
is($client->read(4096, 4096), $bytes, 'host-b reads what the guest wrote on host-a');
$client->close();
PVE::Storage::deactivate_volumes([$disk]);

# host-a dies with dirty data.
$a->here();
PVE::Storage::activate_volumes([$disk]);
unlink("$a->{dir}/device/vm-100-disk-0.pid");
$a->crash()->start();
$client = $a->writer('vm-100-disk-0');
$client->write(0, 'only in the cache of host-a' . '.' x 4069);
$client->flush();
$client->close();
$a->crash();
$b->here();
for my $call (qw(activate_volumes vdisk_free)) {
    my @arguments = $call eq 'activate_volumes' ? [$disk] : $disk;
    ok(!eval { PVE::Storage->can($call)->(@arguments); 1 },
        "refused on host-b when host-a died with dirty data: $call");
    like($@, qr/tenuto: volume vm-100-disk-0: host-a may hold dirty data of it.*start tenuto there/,
        '... and it names host-a');
}
ok(-e "$images/vm-100-disk-0.raw.tenuto", '... and the ledger is there');
$a->start();
PVE::Storage::deactivate_volumes([$disk]);
$b->here();
PVE::Storage::activate_volumes([$disk]);
$client = $b->client('vm-100-disk-0');
like($client->read(0, 4096), qr/\Aonly in the cache of host-a/,
    'when host-a is back nothing is lost');
$client->close();
PVE::Storage::deactivate_volumes([$disk]);

# host-b loses its cache with dirty data.
PVE::Storage::activate_volumes([$disk]);
unlink("$b->{dir}/device/vm-100-disk-0.pid");
$b->crash()->start();
$client = $b->writer('vm-100-disk-0');
$client->write(0, 'lost with the cache' . '.' x 4077);
$client->flush();
$client->close();
$b->stop();
unlink("$b->{dir}/cache");
$b->start();
is($b->show('vm-100-disk-0')->{state}, 'held', 'host-b has lost data of the disk');
for my $call (qw(activate_volumes vdisk_free)) {
    my @arguments = $call eq 'activate_volumes' ? [$disk] : $disk;
    ok(!eval { PVE::Storage->can($call)->(@arguments); 1 },
        "refused while that is not accepted: $call");
    like($@, qr/tenuto: .*; /, '... with the reason and how to go on');
    diag($@) if $ENV{TENUTO_SHOW};
}
$b->tenuto('volume', 'accept-loss', 'vm-100-disk-0', '--discard-dirty=vm-100-disk-0');
PVE::Storage::activate_volumes([$disk]);
pass('... and the guest starts when it is');
PVE::Storage::deactivate_volumes([$disk]);

$a->here();
PVE::Storage::vdisk_free($disk);
is_deeply([glob("$images/*")], [], 'any node destroys it when no node has it');

done_testing();
