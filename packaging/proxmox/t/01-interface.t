#!/usr/bin/perl -T
# What Proxmox VE asks of a plugin before any disk exists: versions, options, names, features.
use v5.26;
use warnings;

use Test::More;
use TenutoNode;

my $plugin = 'PVE::Storage::Custom::TenutoPlugin';
my $node = TenutoNode->new('host-a');
is(TenutoNode::load_plugin(), 15, 'it is loaded, and implements the newest version it knows');

for my $pair ([10, 10], [11, 11], [13, 13], [15, 15], [16, 15], [9, 10]) {
    my ($theirs, $ours) = @$pair;
    local $PVE::Storage::version = $theirs;
    is($plugin->api(), $ours, "under version $theirs it says $ours");
}

is($plugin->type(), 'tenuto', 'the type');
is_deeply($plugin->plugindata()->{content}->[0], { images => 1 }, 'disks of virtual machines only');
is_deeply($plugin->get_formats({}, 'fast')->{valid}, { raw => 1 }, 'raw images only');
ok($plugin->can($_) && defined(&{"${plugin}::$_"}), "$_ is its own")
    for qw(create_base clone_image rename_volume volume_snapshot volume_export volume_import);
my @leaked = grep { defined(&{"${plugin}::$_"}) } qw(ask must show add attach detach image device);
is_deeply(\@leaked, [], 'helpers are no methods, so the base class cannot call one by accident');

# Options of a storage.
my $images = TenutoNode::images();
PVE::Storage::add_storage('fast', 'tenuto', 'tenuto-path' => $images, shared => 1);
pass('a storage with a directory is added');
my %wrong = (
    'no directory' => [qr/missing value for 'tenuto-path'/, shared => 1],
    'path instead' => [qr/unexpected property 'path'/, path => $images],
    'a relative path' => [qr/no absolute path/, 'tenuto-path' => 'images'],
    'a directory that is not there' =>
        [qr{directory '/nowhere' is not there}, 'tenuto-path' => '/nowhere'],
    'a path that a shell would read' => [qr/is not taken/, 'tenuto-path' => '/tmp/$(id)'],
    'a path with a line end' => [qr/is not taken/, 'tenuto-path' => "$images\n"],
    'a policy that discards' =>
        [qr/ephemeral/, 'tenuto-path' => $images, 'tenuto-policy' => 'ephemeral'],
    'too many replicas' => [qr/too large/, 'tenuto-path' => $images, 'tenuto-replicas' => 8],
);
for my $what (sort keys %wrong) {
    my ($words, @config) = @{ $wrong{$what} };
    ok(!eval { PVE::Storage::add_storage('other', 'tenuto', @config); 1 }, "refused: $what");
    like($@, $words, "... and it says why");
}
# The schema is one guard, the plugin the second: a file may be edited by hand.
for my $config ({ 'tenuto-policy' => 'ephemeral' }, { 'tenuto-replicas' => '1x' }) {
    my ($name) = keys %$config;
    ok(!eval { $plugin->activate_storage('x', { 'tenuto-path' => $images, %$config }, {}); 1 },
        "past the schema a wrong $name is refused");
    like($@, qr/\Q$name\E '.*' is not taken; write/, '... with what would be right');
}

# Names.
is_deeply(
    [$plugin->parse_volname('vm-100-disk-0')],
    ['images', 'vm-100-disk-0', '100', undef, undef, undef, 'raw'],
    'a disk',
);
my @taken = qw(vm-100-cloudinit vm-100-state-suspend-2026-07-01 vm-999999999-disk-1023);
is(($plugin->parse_volname($_))[1], $_, "a name: $_") for @taken;
my @odd = (
    'disk-0', 'vm-100', 'vm-0-disk-0', 'vm-007-disk-0', 'base-100-disk-0', 'vm-100-disk-0.raw',
    'vm-100-disk-0.raw.tenuto-2', '100/vm-100-disk-0.raw', 'vm-100-../../etc/passwd', 'vm-100-a b',
    "vm-100-a\n", 'vm-100-a;id', 'vm-100-$(id)', '--help', "vm-100-\x{e4}", 'vm-100-' . 'a' x 57,
);
for my $name (@odd) {
    my $shown = $name =~ s/([^ -~])/sprintf('\\x%02x', ord($1))/ger;
    ok(!eval { $plugin->parse_volname($name); 1 }, "not a name: $shown");
}

is(PVE::Storage::path('fast:vm-100-disk-0'), '/dev/tenuto/vm-100-disk-0', 'the path is the device');
is_deeply([PVE::Storage::path('fast:vm-100-disk-0')],
    ['/dev/tenuto/vm-100-disk-0', '100', 'images'], '... with its owner and kind');
is_deeply(
    PVE::Storage::qemu_blockdev_options('fast:vm-100-disk-0', '10.1+pve0', {}),
    { driver => 'host_device', filename => '/dev/tenuto/vm-100-disk-0' },
    'QEMU opens the device',
);
ok(!eval { PVE::Storage::qemu_blockdev_options('fast:vm-100-disk-0', '10.1+pve0',
    { 'snapshot-name' => 'one' }); 1 },
    '... and no snapshot of it');

# What it can do, and what it refuses.
for my $feature (qw(copy sparseinit)) {
    ok(PVE::Storage::volume_has_feature($feature, 'fast:vm-100-disk-0'), "has: $feature");
}
for my $feature (qw(snapshot clone template rename replicate unheard-of)) {
    ok(!PVE::Storage::volume_has_feature($feature, 'fast:vm-100-disk-0'), "has not: $feature");
}
ok(!PVE::Storage::volume_has_feature('copy', 'fast:vm-100-disk-0', 'one'), 'has not: a snapshot');
TenutoNode::changes();
my %refusable = PVE::Storage::refusable('fast:vm-100-disk-0');
for my $call (sort keys %refusable) {
    ok(!eval { $refusable{$call}->(); 1 }, "refused: $call");
    like($@, qr/a tenuto storage (?:has|renames|exports|imports) no /, '... by name');
}
is_deeply([TenutoNode::changes()], [], 'a refusal asks nothing of tenuto');
is_deeply([$plugin->volume_export_formats({}, 'fast', 'vm-100-disk-0')], [],
    'no formats to export');
is_deeply([$plugin->volume_import_formats({}, 'fast', 'vm-100-disk-0')], [],
    'no formats to import');

# The state of the storage.
my ($total, $avail, $used, $active) = PVE::Storage::storage_info('fast');
ok($total > 0 && $avail <= $total && $active, 'the room is that of the directory');

# The daemon is not there.
$node->stop();
ok(!eval { PVE::Storage::activate_storage('fast'); 1 },
    'without a daemon the storage is not online');
like($@,
    qr/connection check for storage 'fast' failed - tenuto: .*start the daemon with `tenuto serve`/,
    "... in tenuto's words");
$node->start();
ok(eval { PVE::Storage::activate_storage('fast'); 1 },
    'with it the storage is there again') || diag($@);
{
    local @PVE::Storage::Custom::TenutoPlugin::tenuto = ('/nowhere/tenuto');
    ok(!eval { PVE::Storage::activate_storage('fast'); 1 }, 'without the program it is not');
    like($@, qr{'/nowhere/tenuto peer ls' could not be run}, '... and it says so');
}

done_testing();
