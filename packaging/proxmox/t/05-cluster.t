#!/usr/bin/perl -T
# Two nodes of a cluster of Tenuto: a disk goes where its guest is, without a destage at its end.
use v5.26;
use warnings;

use Test::More;
use TenutoNode;

my $a = TenutoNode->new('host-a');
my $b = TenutoNode->new('host-b');
TenutoNode::load_plugin();
TenutoNode::cluster($a, $b);
my $images = TenutoNode::images();
PVE::Storage::add_storage('fast', 'tenuto', 'tenuto-path' => $images, shared => 1);
PVE::Storage::add_storage('safe', 'tenuto', 'tenuto-path' => $images, shared => 1,
    'tenuto-replicas' => 1);

sub guest_writes {
    my ($node, $name, $words) = @_;
    my $client = $node->writer($name);
    $client->write(0, $words . '.' x (4096 - length($words)));
    $client->flush();
    $client->close();
}

sub reads {
    my ($node, $name) = @_;
    my $client = $node->client($name);
    my ($words) = $client->read(0, 4096) =~ /\A([^.\0]*)/;
    $client->close();
    return $words;
}

sub runs_on {
    my ($node, $disk) = @_;
    PVE::Storage::activate_volumes([$disk]) if $node->here();
    TenutoNode::changes();
}

sub ends_on {
    my ($node, $disk) = @_;
    PVE::Storage::deactivate_volumes([$disk]) if $node->here();
    my ($name) = $disk =~ /:(.*)/;
    TenutoNode::until_true('no client', sub { !$node->show($name)->{clients} });
}

# From node to node.
$a->here();
my $disk = PVE::Storage::vdisk_alloc('fast', 100, 'raw', undef, 8 << 10);
runs_on($a, $disk);
is($a->show('vm-100-disk-0')->{owner}, 'host-a', 'the node where the guest runs owns the volume');

# A live migration: host-b starts the guest while host-a runs it.
TenutoNode::within(1, sub {
    $b->here();
    ok(!eval { PVE::Storage::activate_volumes([$disk]); 1 },
        'refused: a second node while the first runs it');
    like($@, qr/no end of .*volume device vm-100-disk-0.* within 1 s/, '... after it has waited');
    is_deeply([$b->volumes()], [], '... and that node has no volume of it');
    is($a->show('vm-100-disk-0')->{owner}, 'host-a', '... the first one goes on');
});
ok(!eval { PVE::Storage::vdisk_free($disk); 1 },
    'refused: to destroy it on the node that does not own it');
like($@, qr/tenuto: volume vm-100-disk-0: .*destroy the disk on node host-a/,
    '... and it names the node');
ok(-e "$images/vm-100-disk-0.raw", '... and the image is there');
is_deeply([$b->volumes()], [], '... and that node has no volume of it');

TenutoNode::changes();
ends_on($a, $disk);
is_deeply([TenutoNode::changes()], ['volume device vm-100-disk-0 --detach'],
    'a guest that ends: its device only');
is($a->show('vm-100-disk-0')->{clients}, 0, 'the volume has no client then');
guest_writes($a, 'vm-100-disk-0', 'first');
ok($a->show('vm-100-disk-0')->{dirty_bytes}, 'host-a has what the image has not');
runs_on($b, $disk);
is($b->show('vm-100-disk-0')->{owner}, 'host-b', 'the next node gets the volume');
ends_on($b, $disk);
is(reads($b, 'vm-100-disk-0'), 'first', '... with what was dirty');

# Destroyed on one node and made anew, while another still has its name.
is($a->show('vm-100-disk-0')->{state}, 'away', 'host-a has its name still');
$b->here();
PVE::Storage::vdisk_free($disk);
is_deeply([glob("$images/*")], [], 'nothing is left of it, nor of its ledgers');
is(PVE::Storage::vdisk_alloc('fast', 100, 'raw', 'vm-100-disk-0', 8 << 10), $disk,
    'one of this name is made anew');
runs_on($b, $disk);
ends_on($b, $disk);
is(reads($b, 'vm-100-disk-0'), '', '... and is empty');
guest_writes($b, 'vm-100-disk-0', 'second');
runs_on($a, $disk);
ends_on($a, $disk);
is(reads($a, 'vm-100-disk-0'), 'second', 'the node that knew the old one has the new one');

# What a clustered volume does not do is told.
ok(!eval { PVE::Storage::volume_resize($disk, 16 << 20, 0); 1 }, 'refused: another size');
like($@, qr/tenuto: .*clustered volume is not in this version/, "... in tenuto's words");
PVE::Storage::vdisk_free($disk);

# A node that is lost, with a copy on the other one.
my $safe = PVE::Storage::vdisk_alloc('safe', 101, 'raw', undef, 8 << 10);
runs_on($a, $safe);
ends_on($a, $safe);
guest_writes($a, 'vm-101-disk-0', 'flushed');
TenutoNode::until_true('a copy',
    sub { ($a->show('vm-101-disk-0')->{replication}->{state} // '') eq 'full' });
$a->crash();
runs_on($b, $safe);
pass('the guest starts on the node with the copy');
ends_on($b, $safe);
is(reads($b, 'vm-101-disk-0'), 'flushed', '... with everything that was flushed');
ok(!eval { PVE::Storage::vdisk_free($safe); 1 },
    'refused: to destroy it while the lost node may write its image');
like($@, qr/tenuto: volume vm-101-disk-0: .*host-a may still write/, '... and it names that node');
$a->start();
$b->here();
TenutoNode::until_true('owned',
    sub { ($b->show('vm-101-disk-0')->{drain}->{holder} // '') eq 'host-b' });
ok(eval { PVE::Storage::vdisk_free($safe); 1 }, 'it is destroyed when that node is back')
    or diag($@);
is_deeply([glob("$images/*")], [], '... and nothing is left of it');

done_testing();
